/* Sums of what the kernel counts of each task, by job, kept in the kernel.
 *
 * A job is a directory of cgroups: one made below a root that the agent names, or entered by the agent. settle() adds what a
 * task counted since its base to its job's `settled`, and moves the base. It is called where a task leaves a job, ends and
 * is freed. A reading adds what is not settled of the live ones. So each tick of a counter is at any time counted once. */
#include "kernel_types.h"
#include "accounting.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1024); /* set at load */
    __type(key, u64);
    __type(value, struct job);
} jobs SEC(".maps");

/* By address: a thread that calls execve() takes its leader's number, and keeps its task_struct. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 16384); /* set at load */
    __type(key, u64);
    __type(value, struct task);
} tasks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, u64);
    __type(value, struct root);
} roots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, u64);
} reading SEC(".maps"); /* its number, set by the agent */

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct losses);
} lost SEC(".maps");

/* Not empty once a task of a job has ended since the agent looked: it wakes up. What is in it does not matter. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 65536); /* the largest page of any machine */
} ends SEC(".maps");

/* Constant from the load on, so that the verifier follows only those in use. */
const volatile u32 hierarchies[MAX_HIERARCHIES] SEC(".rodata.hierarchies") = {};
const struct job no_job = {};
const struct task no_task = {};

#define COUNT_LOSS(field)                                                  \
    do {                                                               \
        u32 first = 0;                                             \
        struct losses *losses = bpf_map_lookup_elem(&lost, &first); \
        if (losses)                                                \
            __sync_fetch_and_add(&losses->field, 1);           \
    } while (0)

/* -- directories -- */

static __always_inline u64 directory_key(struct cgroup *c, u32 hierarchy)
{
    struct kernfs_node *node = c->kn;
    u64 id;
    if (bpf_core_field_exists(node->id))
        id = node->id; /* st_ino of the directory */
    else
        id = (u32)BPF_CORE_READ((struct kernfs_node___before_5_5 *)node, id.id);
    return id | (u64)hierarchy << HIERARCHY_SHIFT;
}

/* Index of a hierarchy's controller in the arrays of this kernel; -1 for v2, -2 where the kernel lacks it. */
#define CASE(which, name)                                                             \
    case which:                                                                   \
        return bpf_core_enum_value_exists(enum cgroup_subsys_id, name##_cgrp_id) \
                   ? (s32)bpf_core_enum_value(enum cgroup_subsys_id, name##_cgrp_id) : -2
static __always_inline s32 subsys_of(u32 hierarchy)
{
    switch (hierarchy) {
    CASE(HIERARCHY_CPUSET, cpuset);
    CASE(HIERARCHY_FREEZER, freezer);
    CASE(HIERARCHY_MEMORY, memory);
    CASE(HIERARCHY_DEVICES, devices);
    CASE(HIERARCHY_PIDS, pids);
    CASE(HIERARCHY_CPUACCT, cpuacct);
    CASE(HIERARCHY_CPU, cpu);
    CASE(HIERARCHY_BLKIO, io);
    case HIERARCHY_V2:
        return -1;
    }
    return -2;
}

static __always_inline struct cgroup *parent_of(struct cgroup *c)
{
    struct cgroup_subsys_state *parent = c->self.parent;
    return parent ? parent->cgroup : 0;
}

/* The key of the job whose directory is c or above it; 0 for none. ancestors[] would spare the climb, since Linux 6.1. */
static __always_inline u64 job_above(struct cgroup *c, u32 hierarchy)
{
    for (int i = 0; i < MAX_DEPTH; i++) {
        if (!c || c->level < 1)
            return 0;
        u64 key = directory_key(c, hierarchy);
        if (bpf_map_lookup_elem(&jobs, &key))
            return key;
        c = parent_of(c);
    }
    COUNT_LOSS(too_deep);
    return 0;
}

/* The key of a task's job, in the first hierarchy where it has one; 0 for none. */
static __always_inline u64 job_of(struct task_struct *t)
{
    struct css_set *set = t->cgroups;
    if (!set)
        return 0;
#pragma unroll
    for (u32 i = 0; i < MAX_HIERARCHIES; i++) {
        struct cgroup *c = 0;
        s32 subsys = subsys_of(hierarchies[i]);
        if (subsys == -1)
            c = set->dfl_cgrp;
        else if (subsys >= 0 && subsys < 16) {
            struct cgroup_subsys_state *css = set->subsys[subsys];
            if (css)
                c = css->cgroup;
        }
        u64 key = c ? job_above(c, hierarchies[i]) : 0;
        if (key)
            return key;
    }
    return 0;
}

/* -- counters of a task -- */

#define FOR_EACH_COUNTER _Pragma("unroll") for (int i = 0; i < COUNTERS; i++)

/* READ(task, field): from a pointer that the verifier knows, or a copy from one that it does not. */
#define READ_COUNTERS(READ, READ_WAIT)                                  \
    do {                                                            \
        struct task_delay_info *delays = READ(t, delays);       \
        v[CPU_COUNT] = READ(t, sched_info.pcount);              \
        v[CPU_DELAY] = READ(t, sched_info.run_delay);           \
        if (delays) { /* counted with kernel.task_delayacct */  \
            v[BLKIO_COUNT] = READ_WAIT(delays, blkio_count);         \
            v[BLKIO_DELAY] = READ_WAIT(delays, blkio_delay);         \
            v[SWAPIN_COUNT] = READ_WAIT(delays, swapin_count);       \
            v[SWAPIN_DELAY] = READ_WAIT(delays, swapin_delay);       \
            v[FREEPAGES_COUNT] = READ_WAIT(delays, freepages_count); \
            v[FREEPAGES_DELAY] = READ_WAIT(delays, freepages_delay); \
        }                                                       \
        v[UTIME] = READ(t, utime);                              \
        v[STIME] = READ(t, stime);                              \
        v[RUNTIME] = READ(t, se.sum_exec_runtime);              \
        v[MINOR_FAULTS] = READ(t, min_flt);                     \
        v[MAJOR_FAULTS] = READ(t, maj_flt);                     \
        v[RSS_INTEGRAL] = READ(t, acct_rss_mem1);               \
        v[VM_INTEGRAL] = READ(t, acct_vm_mem1);                 \
        v[READ_CHARS] = READ(t, ioac.rchar);                    \
        v[WRITTEN_CHARS] = READ(t, ioac.wchar);                 \
        v[READ_CALLS] = READ(t, ioac.syscr);                    \
        v[WRITE_CALLS] = READ(t, ioac.syscw);                   \
        v[READ_BYTES] = READ(t, ioac.read_bytes);               \
        v[WRITTEN_BYTES] = READ(t, ioac.write_bytes);           \
        v[CANCELLED_BYTES] = READ(t, ioac.cancelled_write_bytes); \
        v[VOLUNTARY_SWITCHES] = READ(t, nvcsw);                 \
        v[INVOLUNTARY_SWITCHES] = READ(t, nivcsw);              \
    } while (0)
#define DIRECT(pointer, field) ((pointer)->field)

/* Since Linux 6.12 a wait for block I/O may be counted as the time since boot. Such a counter counts as settled, so that it
 * does not become plausible as the task grows older. Returns how many were dropped. */
static __always_inline u64 drop_implausible(u64 *v, u64 start_ns, struct task *task)
{
    u64 base = task ? task->base[BLKIO_DELAY] : 0;
    if (v[BLKIO_DELAY] <= base || v[BLKIO_DELAY] - base <= bpf_ktime_get_ns() - start_ns)
        return 0;
    if (task)
        task->base[BLKIO_DELAY] = v[BLKIO_DELAY];
    else
        v[BLKIO_DELAY] = 0;
    return 1;
}

static __always_inline u64 read_counters(struct task_struct *t, u64 *v, struct task *task)
{
    READ_COUNTERS(DIRECT, DIRECT);
    return drop_implausible(v, t->start_time, task);
}

static __always_inline void copy_counters(struct task_struct *t, u64 *v, struct task *task)
{
    READ_COUNTERS(BPF_CORE_READ, BPF_CORE_READ);
    drop_implausible(v, BPF_CORE_READ(t, start_time), task);
}

/* Atomic: other CPUs, and the soft interrupt that frees tasks, add to the same job. */
static __always_inline void settle(struct job *job, struct task *task, u64 *v)
{
    FOR_EACH_COUNTER {
        u64 grown = v[i] - task->base[i];
        if ((s64)grown > 0) {
            __sync_fetch_and_add(&job->settled[i], grown);
            task->base[i] = v[i];
        }
    }
}

/* -- entries of tasks -- */

/* Add a task to a job; `v` is what it counted before, NULL for nothing. */
static __always_inline struct task *enter(u64 address, u64 start_ns, u64 tgid, u64 key, u64 *v, struct job *job)
{
    long known = bpf_map_update_elem(&tasks, &address, &no_task, BPF_NOEXIST); /* a reading and a fork may meet */
    struct task *task = bpf_map_lookup_elem(&tasks, &address);
    if (!task) {
        COUNT_LOSS(tasks_full);
        return 0;
    }
    if (v)
        FOR_EACH_COUNTER task->base[i] = v[i];
    task->start_ns = start_ns;
    task->tgid = tgid;
    task->job = key; /* 0 until here: others leave the entry alone */
    if (!known)
        __sync_fetch_and_add(&job->present, 1);
    return task;
}

static __always_inline void remove_task(u64 address, struct job *job)
{
    if (!bpf_map_delete_elem(&tasks, &address) && job)
        __sync_fetch_and_add(&job->present, -1);
}

/* The entry at a task's address; NULL without one. An earlier task's, whose last event was missed, is removed. */
static __always_inline struct task *find_task(u64 address, u64 start_ns, u64 tgid)
{
    struct task *task = bpf_map_lookup_elem(&tasks, &address);
    if (!task || !task->job || (task->tgid == tgid && (!start_ns || task->start_ns == start_ns)))
        return task;
    u64 key = task->job;
    COUNT_LOSS(missed_ends);
    remove_task(address, bpf_map_lookup_elem(&jobs, &key));
    return 0;
}

/* What a task counted before it entered a job, if that was not seen: all where it is older than the job's directory. */
static __always_inline u64 *v_before(struct job *job, u64 start_ns, u64 *v)
{
    return job->is_added || start_ns >= job->made_ns ? 0 : v;
}

/* -- events -- */

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
    u64 key = job_of(child), address = (u64)child, start_ns = child->start_time, tgid = child->tgid;
    struct job *job = key ? bpf_map_lookup_elem(&jobs, &key) : 0;
    if (!job)
        return 0;
    __sync_fetch_and_add(&job->forked, 1);
    if (!find_task(address, start_ns, tgid)) /* else it was moved, or read, since it was made */
        enter(address, start_ns, tgid, key, 0, job);
    return 0;
}

/* One moved task, by its address. A global function is verified once, not in each round of the loop that calls it. */
__noinline int move_task(u64 address, u64 key)
{
    struct task_struct *t = (void *)address;
    u64 v[COUNTERS] = {};
    u64 tgid = BPF_CORE_READ(t, tgid);
    struct task *task = find_task(address, 0, tgid);
    if ((task ? task->job : 0) == key || (BPF_CORE_READ(t, flags) & PF_EXITING))
        return 0;
    copy_counters(t, v, task);
    if (task) {
        u64 former_key = task->job;
        struct job *former = bpf_map_lookup_elem(&jobs, &former_key);
        if (former) {
            settle(former, task, v);
            __sync_fetch_and_add(&former->left, 1);
        }
        remove_task(address, former);
    }
    struct job *job = bpf_map_lookup_elem(&jobs, &key);
    if (job && enter(address, BPF_CORE_READ(t, start_time), tgid, key, v, job))
        __sync_fetch_and_add(&job->entered, 1);
    return 0;
}

/* After a move: one event for a process, with threadgroup, or for a thread. */
SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(on_attach, struct cgroup *to, const char *path, struct task_struct *t, bool threadgroup)
{
    u64 key = job_of(t), pointer = (u64)t, address, node, first;
    if (bpf_probe_read_kernel(&address, sizeof address, &pointer)) /* as a number, which a global function takes */
        return 0;
    move_task(address, key);
    if (!threadgroup)
        return 0;
    u64 offset = bpf_core_field_offset(struct task_struct, thread_node);
    u64 head = (u64)t->signal + bpf_core_field_offset(struct signal_struct, thread_head);
    first = node = address + offset;
    for (int i = 0; i < MAX_THREADS; i++) {
        if (bpf_probe_read_kernel(&node, sizeof node, (void *)node) || node == first)
            return 0;
        if (node != head)
            move_task(node - offset, key);
    }
    COUNT_LOSS(threads_beyond);
    return 0;
}

/* A task's exit, and its last event: a grace period of RCU after its parent has waited for it, all counters are final. */
static __always_inline void end_task(struct task_struct *t, bool is_freed)
{
    u64 address = (u64)t, v[COUNTERS] = {}, start_ns = t->start_time, tgid = t->tgid;
    struct task *task = find_task(address, 0, tgid), *known = task;
    u64 key = task && task->job ? task->job : job_of(t);
    struct job *job = key ? bpf_map_lookup_elem(&jobs, &key) : 0;
    if (!job) {
        if (is_freed && task)
            remove_task(address, 0);
        return;
    }
    u64 dropped = read_counters(t, v, task);
    if (!task && !is_freed)
        task = known = enter(address, start_ns, tgid, key, v_before(job, start_ns, v), job);
    if (task)
        settle(job, task, v);
    else if (is_freed) /* `tasks` was full */
        FOR_EACH_COUNTER if (v[i]) __sync_fetch_and_add(&job->settled[i], v[i]);
    if (!is_freed) {
        __sync_fetch_and_add(&job->ended, 1);
        if (!bpf_ringbuf_query(&ends, BPF_RB_AVAIL_DATA))
            bpf_ringbuf_output(&ends, &key, sizeof key, 0);
        if (!job->oldest_ns || start_ns < job->oldest_ns)
            job->oldest_ns = start_ns;
        return;
    }
    if (dropped)
        __sync_fetch_and_add(&job->implausible, dropped);
    if (t->pid == t->tgid) {
        struct signal_struct *signal = t->signal;
        if (signal->maxrss > job->largest_process)
            job->largest_process = signal->maxrss;
        if (signal->oom_mm)
            __sync_fetch_and_add(&job->oom_kills, 1);
    }
    if (known)
        remove_task(address, job);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *t)
{
    end_task(t, false);
    return 0;
}

SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *t)
{
    end_task(t, true);
    return 0;
}

/* Whether OAR 3 gives a job's directory this name: oar-u1000-j42.slice, and not oar-u1000.slice. */
static __always_inline bool is_oar3_name(const char *name)
{
    if (name[0] != 'o' || name[1] != 'a' || name[2] != 'r' || name[3] != '-' || name[4] != 'u')
        return false;
    for (int i = 5; i < NAME_SIZE - 1 && name[i]; i++)
        if (name[i] == '-' && name[i + 1] == 'j')
            return true;
    return false;
}

/* Which hierarchy a directory is in: one of `hierarchies`, else 0. */
static __always_inline u32 hierarchy_of(struct cgroup *c)
{
#pragma unroll
    for (u32 i = 0; i < MAX_HIERARCHIES; i++) {
        s32 subsys = subsys_of(hierarchies[i]);
        if (subsys == -1 ? c->root->hierarchy_id == 0
                         : subsys >= 0 && subsys < 16 && c->root->hierarchy_id && c->subsys[subsys])
            return hierarchies[i];
    }
    return 0;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(on_mkdir, struct cgroup *c)
{
    u32 hierarchy = hierarchy_of(c);
    struct cgroup *above = parent_of(c);
    if (!hierarchy || job_above(c, hierarchy))
        return 0;
    for (u32 depth = 1; depth <= MAX_ROOT_DEPTH; depth++) {
        if (!above)
            return 0;
        u64 root_key = directory_key(above, hierarchy);
        struct root *root = bpf_map_lookup_elem(&roots, &root_key);
        if (!root) {
            above = parent_of(above);
            continue;
        }
        char name[NAME_SIZE] = {};
        bpf_probe_read_kernel_str(name, sizeof name, c->kn->name);
        if (root->oar3 ? depth > root->depth || !is_oar3_name(name) : depth != root->depth)
            return 0;
        u64 key = directory_key(c, hierarchy);
        if (bpf_map_update_elem(&jobs, &key, &no_job, BPF_NOEXIST))
            COUNT_LOSS(jobs_full);
        struct job *job = bpf_map_lookup_elem(&jobs, &key);
        if (!job)
            return 0;
        __builtin_memcpy(job->name, name, NAME_SIZE);
        struct cgroup *parent = parent_of(c);
        if (parent)
            bpf_probe_read_kernel_str(job->parent_name, PARENT_NAME_SIZE, parent->kn->name);
        job->root = root_key;
        job->made_ns = bpf_ktime_get_ns();
        return 0;
    }
    return 0;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(on_rmdir, struct cgroup *c)
{
    u32 hierarchy = hierarchy_of(c);
    u64 key = hierarchy ? directory_key(c, hierarchy) : 0;
    struct job *job = key ? bpf_map_lookup_elem(&jobs, &key) : 0;
    if (job)
        job->removed_ns = bpf_ktime_get_ns();
    return 0;
}

/* -- readings -- */

static __always_inline void add_memory(struct job *job, struct task_struct *t)
{
    struct mm_struct *mm = t->mm;
    u64 rss[4] = {}, resident, largest;
    if (!mm)
        return;
    /* Once for each mm: by its owner, which moves on; without CONFIG_MEMCG by the leader, until that ends. */
    if (bpf_core_field_exists(mm->owner) ? mm->owner != t : t->group_leader != t)
        return;
    if (bpf_core_field_exists(mm->rss_stat[0].count)) {
        rss[0] = mm->rss_stat[0].count;
        rss[1] = mm->rss_stat[1].count;
        rss[2] = mm->rss_stat[2].count;
        rss[3] = mm->rss_stat[3].count;
    } else { /* copied: the verifier of 5.10 does not know arrays of atomic_long_t */
        struct mm_struct___before_6_2 *old = (void *)mm;
        bpf_core_read(rss, sizeof rss, &old->rss_stat.count);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if ((s64)rss[i] < 0) /* CPUs have not added their parts yet */
            rss[i] = 0;
    job->gauges[VM_SIZE] += mm->total_vm;
    job->gauges[RSS_FILE] += rss[0];
    job->gauges[RSS_ANON] += rss[1];
    job->gauges[SWAP] += rss[2];
    job->gauges[RSS_SHMEM] += rss[3];
    if (bpf_core_field_exists(mm->hugetlb_usage))
        job->gauges[HUGETLB] += BPF_CORE_READ(mm, hugetlb_usage.counter);
    resident = rss[0] + rss[1] + rss[3];
    largest = mm->hiwater_rss > resident ? mm->hiwater_rss : resident;
    if (largest > job->gauges[LARGEST_PROCESS])
        job->gauges[LARGEST_PROCESS] = largest;
    if (rss[0] + rss[3] > job->gauges[LARGEST_MAPPED])
        job->gauges[LARGEST_MAPPED] = rss[0] + rss[3];
}

SEC("iter/task")
int read_tasks(struct bpf_iter__task *context)
{
    struct task_struct *t = context->task;
    u32 first = 0;
    u64 *number = bpf_map_lookup_elem(&reading, &first);
    if (!t || !number)
        return 0;
    u64 address = (u64)t, v[COUNTERS] = {}, start_ns = t->start_time, tgid = t->tgid;
    u64 key = job_of(t);
    struct task *task = find_task(address, 0, tgid);
    if (!key && !task)
        return 0;
    read_counters(t, v, task);
    if (task && task->job && task->job != key) { /* moved beside MAX_THREADS others */
        u64 former_key = task->job;
        struct job *former = bpf_map_lookup_elem(&jobs, &former_key);
        if (former)
            settle(former, task, v);
        if (t->flags & PF_EXITING)
            return 0;
        remove_task(address, former);
        COUNT_LOSS(late_moves);
        task = 0;
        struct job *job = key ? bpf_map_lookup_elem(&jobs, &key) : 0;
        if (job)
            task = enter(address, start_ns, tgid, key, v, job);
    }
    struct job *job = key ? bpf_map_lookup_elem(&jobs, &key) : 0;
    if (!job)
        return 0;
    if (!task) { /* older than this program or the job's entry, or a worker of io_uring */
        if (t->flags & PF_EXITING) /* counted at its end */
            return 0;
        task = enter(address, start_ns, tgid, key, v_before(job, start_ns, v), job);
    }
    if (job->reading != *number) {
        FOR_EACH_COUNTER {
            job->snapshot[i] = job->settled[i];
            job->live[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < GAUGES; i++)
            job->gauges[i] = 0;
        job->reading = *number;
    }
    FOR_EACH_COUNTER {
        u64 grown = v[i] - (task ? task->base[i] : 0);
        if ((s64)grown > 0)
            job->live[i] += grown;
    }
    if (!job->oldest_ns || start_ns < job->oldest_ns)
        job->oldest_ns = start_ns;
    if (t->flags & PF_EXITING)
        return 0;
    job->gauges[TASKS]++;
    if (t->group_leader == t)
        job->gauges[PROCESSES]++;
    add_memory(job, t);
    return 0;
}
