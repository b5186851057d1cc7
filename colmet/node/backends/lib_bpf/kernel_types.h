/* The kernel's types, as far as the programs use them. libbpf finds each field by its name in the running kernel's BTF
 * (CO-RE), so neither bpftool nor a generated vmlinux.h is needed to build, and order and gaps do not matter here. */
#ifndef COLMET_KERNEL_TYPES_H
#define COLMET_KERNEL_TYPES_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16; /* named by libbpf's declarations of helpers */
typedef __u32 __be32;
typedef __u32 __wsum;

typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0

enum { BPF_ANY, BPF_NOEXIST, BPF_EXIST };
enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_RINGBUF = 27 };
enum { BPF_RB_AVAIL_DATA = 0 };
#define PF_EXITING 0x4 /* include/linux/sched.h */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

enum cgroup_subsys_id { /* numbers depend on the kernel's configuration: only the names count */
    cpuset_cgrp_id, cpu_cgrp_id, cpuacct_cgrp_id, io_cgrp_id, memory_cgrp_id, devices_cgrp_id, freezer_cgrp_id, pids_cgrp_id,
};

struct list_head {
    struct list_head *next;
};
typedef struct {
    long counter;
} atomic_long_t;
struct kernfs_node {
    const char *name;
    u64 id; /* since Linux 5.5 */
};
union kernfs_node_id {
    u64 id; /* inode number and generation */
};
struct kernfs_node___before_5_5 {
    union kernfs_node_id id;
};
struct cgroup;
struct cgroup_subsys_state {
    struct cgroup *cgroup;
    struct cgroup_subsys_state *parent;
};
struct cgroup_root {
    int hierarchy_id; /* 0: cgroup v2 */
};
struct cgroup {
    struct cgroup_subsys_state self;
    int level;
    struct kernfs_node *kn;
    struct cgroup_subsys_state *subsys[16];
    struct cgroup_root *root;
};
struct css_set {
    struct cgroup_subsys_state *subsys[16];
    struct cgroup *dfl_cgrp; /* of cgroup v2 */
};
struct task_delay_info {
    u64 blkio_delay, swapin_delay, freepages_delay;
    u32 blkio_count, swapin_count, freepages_count;
};
struct task_io_accounting {
    u64 rchar, wchar, syscr, syscw, read_bytes, write_bytes, cancelled_write_bytes;
};
struct sched_info {
    unsigned long pcount;
    unsigned long long run_delay;
};
struct sched_entity {
    u64 sum_exec_runtime;
};
struct percpu_counter {
    s64 count;
};
struct task_struct;
struct mm_struct {
    unsigned long hiwater_rss, total_vm;
    struct percpu_counter rss_stat[4]; /* since Linux 6.2 */
    struct task_struct *owner;         /* with CONFIG_MEMCG */
    atomic_long_t hugetlb_usage;
};
struct mm_rss_stat {
    atomic_long_t count[4];
};
struct mm_struct___before_6_2 {
    struct mm_rss_stat rss_stat;
};
struct signal_struct {
    struct list_head thread_head;
    unsigned long maxrss;
    struct mm_struct *oom_mm;
};
struct task_struct {
    unsigned int flags;
    int pid, tgid;
    struct sched_entity se;
    struct sched_info sched_info;
    struct mm_struct *mm;
    struct task_struct *group_leader;
    struct list_head thread_node;
    u64 utime, stime, start_time;
    unsigned long nvcsw, nivcsw, min_flt, maj_flt;
    struct signal_struct *signal;
    struct task_io_accounting ioac;
    u64 acct_rss_mem1, acct_vm_mem1;
    struct css_set *cgroups;
    struct task_delay_info *delays;
};
struct bpf_iter__task {
    struct task_struct *task;
};

#pragma clang attribute pop
#endif
