#define _GNU_SOURCE
#include "job_accounting.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define MAX_PROGRAMS 8
/* So long after its directory's removal a job has no task but zombies, settled at their exits. */
#define FINAL_NS 1000000000ull

enum { MAP_JOBS, MAP_ROOTS, MAP_READING, MAP_LOST, MAP_ENDS, MAPS };
static const char *const MAP_NAMES[MAPS] = {"jobs", "roots", "reading", "lost", "ends"};
#define ITERATOR "read_tasks"
/* Pinned last: its presence says that all is. */
#define LAST_PIN "complete"

struct accounting {
    int maps[MAPS], links[MAX_PROGRAMS], iterator; /* descriptors; of pinned links, only the iterator's */
    u64 *consumed, *produced; /* positions in `ends`, each a page of it; MAP_FAILED: none */
    u64 reading;
    u64 keys[BATCH];
    struct job jobs[BATCH];
};

/* -- system calls: what was loaded needs no libbpf -- */

static int call_bpf(int command, union bpf_attr *attributes)
{
    int rc = (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
    return rc < 0 ? -errno : rc;
}

static int open_pin(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    union bpf_attr a = {.pathname = (u64)(uintptr_t)path};
    return call_bpf(BPF_OBJ_GET, &a);
}

static int pin(int fd, const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    union bpf_attr a = {.pathname = (u64)(uintptr_t)path, .bpf_fd = (u32)fd};
    return call_bpf(BPF_OBJ_PIN, &a);
}

static int look_up(int map, const void *key, void *value)
{
    union bpf_attr a = {.map_fd = (u32)map, .key = (u64)(uintptr_t)key, .value = (u64)(uintptr_t)value};
    return call_bpf(BPF_MAP_LOOKUP_ELEM, &a);
}

static int update(int map, const void *key, const void *value, u64 flags)
{
    union bpf_attr a = {.map_fd = (u32)map, .key = (u64)(uintptr_t)key, .value = (u64)(uintptr_t)value, .flags = flags};
    return call_bpf(BPF_MAP_UPDATE_ELEM, &a);
}

static int delete(int map, u64 key)
{
    union bpf_attr a = {.map_fd = (u32)map, .key = (u64)(uintptr_t)&key};
    return call_bpf(BPF_MAP_DELETE_ELEM, &a);
}

/* -- libbpf, by dlopen: a node without it has the library all the same, and says so -- */

struct bpf_object;
struct bpf_program;
struct bpf_map;
struct bpf_link;
typedef int (*print_fn)(int level, const char *format, va_list arguments);

struct libbpf {
    void *library;
    struct bpf_object *(*open_file)(const char *path, const void *options);
    int (*load)(struct bpf_object *object);
    void (*close)(struct bpf_object *object);
    struct bpf_map *(*find_map)(const struct bpf_object *object, const char *name);
    int (*set_max_entries)(struct bpf_map *map, u32 count);
    int (*map_fd)(const struct bpf_map *map);
    void *(*initial_value)(const struct bpf_map *map, size_t *size);
    struct bpf_program *(*next_program)(const struct bpf_object *object, struct bpf_program *before);
    const char *(*program_name)(const struct bpf_program *program);
    struct bpf_link *(*attach)(const struct bpf_program *program);
    int (*link_fd)(const struct bpf_link *link);
    int (*destroy)(struct bpf_link *link);
    print_fn (*set_print)(print_fn print);
};

/* What is said of a failure goes here, while programs are loaded. */
static char *messages;
static size_t messages_size;

static int open_libbpf(struct libbpf *b)
{
    static const char *const NAMES[] = {"bpf_object__open_file", "bpf_object__load", "bpf_object__close",
        "bpf_object__find_map_by_name", "bpf_map__set_max_entries", "bpf_map__fd", "bpf_map__initial_value",
        "bpf_object__next_program", "bpf_program__name", "bpf_program__attach", "bpf_link__fd",
        "bpf_link__destroy", "libbpf_set_print"};
    void **functions = (void **)&b->open_file;
    b->library = dlopen("libbpf.so.1", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; b->library && i < sizeof NAMES / sizeof *NAMES; i++)
        if (!(functions[i] = dlsym(b->library, NAMES[i])))
            return -ENOSYS;
    if (!b->library)
        snprintf(messages, messages_size, "libbpf.so.1 is not installed");
    return b->library ? 0 : -ENOSYS;
}

static int keep_message(int level, const char *format, va_list arguments)
{
    if (level > 1 || messages_size < 2) /* 2: debugging */
        return 0;
    int length = vsnprintf(messages, messages_size, format, arguments);
    if (length > 0) {
        size_t kept = (size_t)length < messages_size ? (size_t)length : messages_size - 1;
        messages += kept;
        messages_size -= kept;
    }
    return 0;
}

/* -- opening -- */

int lib_bpf_abi(void) { return ACCOUNTING_VERSION; }

static int map_ends(struct accounting *h)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    h->consumed = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, h->maps[MAP_ENDS], 0);
    h->produced = mmap(NULL, page, PROT_READ, MAP_SHARED, h->maps[MAP_ENDS], (off_t)page);
    return h->consumed == MAP_FAILED || h->produced == MAP_FAILED ? -errno : 0;
}

static int take_over(struct accounting *h, const char *pins)
{
    struct bpf_map_info info = {0};
    int complete = open_pin(pins, LAST_PIN);
    if (complete < 0)
        return complete;
    union bpf_attr a = {.info = {.bpf_fd = (u32)complete, .info_len = sizeof info, .info = (u64)(uintptr_t)&info}};
    int rc = call_bpf(BPF_OBJ_GET_INFO_BY_FD, &a);
    close(complete);
    if (rc || info.value_size != sizeof(struct job))
        return rc ? rc : -EPROTO;
    for (int i = 0; i < MAPS; i++)
        if ((h->maps[i] = open_pin(pins, MAP_NAMES[i])) < 0)
            return h->maps[i];
    if ((h->iterator = open_pin(pins, ITERATOR)) < 0)
        return h->iterator;
    u32 first = 0;
    return look_up(h->maps[MAP_READING], &first, &h->reading); /* readings go on, or a job's would look like this one's */
}

int accounting_unpin(const char *pins)
{
    char path[512];
    struct dirent *entry;
    int rc = 0;
    snprintf(path, sizeof path, "%s/" LAST_PIN, pins);
    if (unlink(path) && errno != ENOENT) /* first: what is left after a kill is not taken over */
        return -errno;
    DIR *folder = opendir(pins);
    if (!folder)
        return errno == ENOENT ? 0 : -errno;
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", pins, entry->d_name);
        if (unlink(path) && errno != ENOENT)
            rc = -errno;
    }
    closedir(folder);
    return rmdir(pins) && errno != ENOENT && !rc ? -errno : rc;
}

/* Load the programs, and keep descriptors alone: libbpf's copy of the kernel's types is some megabytes. */
static int load(struct accounting *h, struct libbpf *b, struct bpf_object *object, const u32 *hierarchies, size_t count,
                u32 max_jobs, u32 max_tasks, const char *pins)
{
    size_t size = 0, attached = 0;
    int rc;
    struct bpf_map *constants = b->find_map(object, ".rodata.hierarchies");
    char *values = constants ? b->initial_value(constants, &size) : NULL;
    struct bpf_map *jobs = b->find_map(object, "jobs"), *tasks = b->find_map(object, "tasks");
    if (!values || size < count * sizeof *hierarchies || !jobs || !tasks)
        return -EPROTO;
    memcpy(values, hierarchies, count * sizeof *hierarchies);
    if ((rc = b->set_max_entries(jobs, max_jobs)) || (rc = b->set_max_entries(tasks, max_tasks)) || (rc = b->load(object)))
        return rc;
    for (int i = 0; i < MAPS; i++) {
        struct bpf_map *map = b->find_map(object, MAP_NAMES[i]);
        if (!map)
            return -EPROTO;
        if ((h->maps[i] = fcntl(b->map_fd(map), F_DUPFD_CLOEXEC, 3)) < 0)
            return -errno;
        if (pins && (rc = pin(h->maps[i], pins, MAP_NAMES[i])))
            return rc;
    }
    for (struct bpf_program *p = NULL; (p = b->next_program(object, p));) {
        const char *name = b->program_name(p);
        if (!strcmp(name, "move_task")) /* called by others */
            continue;
        if (attached == MAX_PROGRAMS)
            return -EPROTO;
        struct bpf_link *link = b->attach(p);
        if (!link)
            return -errno;
        int fd = fcntl(b->link_fd(link), F_DUPFD_CLOEXEC, 3);
        rc = fd < 0 ? -errno : pins ? pin(fd, pins, name) : 0;
        b->destroy(link); /* the descriptor keeps it */
        if (fd >= 0)
            *(strcmp(name, ITERATOR) ? &h->links[attached++] : &h->iterator) = fd;
        if (rc)
            return rc;
    }
    return pins ? pin(h->maps[MAP_JOBS], pins, LAST_PIN) : 0;
}

static int open_programs(struct accounting *h, const char *path, const u32 *hierarchies, size_t count, u32 max_jobs,
                         u32 max_tasks, const char *pins)
{
    struct libbpf b = {0};
    int rc = open_libbpf(&b);
    if (!rc) {
        print_fn before = b.set_print(keep_message);
        struct bpf_object *object = b.open_file(path, NULL);
        rc = object ? load(h, &b, object, hierarchies, count, max_jobs, max_tasks, pins) : -errno;
        if (object)
            b.close(object);
        b.set_print(before);
    }
    if (b.library)
        dlclose(b.library);
    malloc_trim(0);
    return rc;
}

int accounting_open(const char *object, const u32 *hierarchies, size_t count, u32 max_jobs, u32 max_tasks, const char *pins,
                    char *errors, size_t size, struct accounting **handle)
{
    if (!count || count > MAX_HIERARCHIES || !max_jobs || !max_tasks || !size)
        return -EINVAL;
    struct accounting *h = malloc(sizeof *h);
    if (!h)
        return -ENOMEM;
    memset(h, -1, sizeof *h); /* no descriptor, and MAP_FAILED */
    h->reading = 0;
    *errors = 0;
    messages = errors;
    messages_size = size;
    int rc = pins ? take_over(h, pins) : -ENOENT, is_taken_over = !rc;
    if (rc == -ENOENT) {
        rc = pins ? accounting_unpin(pins) : 0; /* what a start that was cut short has left */
        if (!rc && pins && mkdir(pins, 0700))
            rc = -errno;
        if (!rc)
            rc = open_programs(h, object, hierarchies, count, max_jobs, max_tasks, pins);
        if (rc && pins)
            accounting_unpin(pins);
    }
    messages_size = 0;
    if (!rc && (rc = map_ends(h)) && pins && !is_taken_over)
        accounting_unpin(pins);
    if (rc) {
        accounting_close(h);
        return rc < 0 ? rc : -EPROTO;
    }
    *handle = h;
    return is_taken_over;
}

void accounting_close(struct accounting *h)
{
    if (!h)
        return;
    for (int i = 0; i < MAPS; i++)
        if (h->maps[i] >= 0)
            close(h->maps[i]);
    for (int i = 0; i < MAX_PROGRAMS; i++)
        if (h->links[i] >= 0)
            close(h->links[i]);
    if (h->iterator >= 0)
        close(h->iterator);
    if (h->consumed != MAP_FAILED)
        munmap(h->consumed, (size_t)sysconf(_SC_PAGESIZE));
    if (h->produced != MAP_FAILED)
        munmap(h->produced, (size_t)sysconf(_SC_PAGESIZE));
    free(h);
}

/* -- use -- */

int accounting_set_roots(struct accounting *h, const u64 *keys, const struct root *roots, size_t count)
{
    u64 key, next;
    union bpf_attr a = {.map_fd = (u32)h->maps[MAP_ROOTS], .next_key = (u64)(uintptr_t)&next};
    for (size_t i = 0; i < count; i++) {
        if (!roots[i].depth || roots[i].depth > MAX_ROOT_DEPTH)
            return -EINVAL;
        int rc = update(h->maps[MAP_ROOTS], &keys[i], &roots[i], BPF_ANY);
        if (rc)
            return rc;
    }
    while (!call_bpf(BPF_MAP_GET_NEXT_KEY, &a)) {
        size_t i = 0;
        while (i < count && keys[i] != next)
            i++;
        if (i == count && delete(h->maps[MAP_ROOTS], next))
            break;
        key = next; /* of a deleted one, the first key comes next */
        a.key = (u64)(uintptr_t)&key;
    }
    return 0;
}

int accounting_add_job(struct accounting *h, u64 key, u64 root, const char *parent_name, const char *name)
{
    struct job job = {0};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    job.made_ns = (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
    job.root = root;
    job.is_added = 1;
    snprintf(job.name, sizeof job.name, "%s", name);
    snprintf(job.parent_name, sizeof job.parent_name, "%s", parent_name);
    return update(h->maps[MAP_JOBS], &key, &job, BPF_NOEXIST);
}

int accounting_forget(struct accounting *h, u64 key)
{
    return delete(h->maps[MAP_JOBS], key);
}

int accounting_losses(struct accounting *h, struct losses *losses)
{
    u32 first = 0;
    return look_up(h->maps[MAP_LOST], &first, losses);
}

static int read_tasks(struct accounting *h)
{
    char none[512];
    u32 first = 0;
    ssize_t n;
    h->reading++;
    int rc = update(h->maps[MAP_READING], &first, &h->reading, BPF_ANY);
    if (rc)
        return rc;
    union bpf_attr a = {.iter_create = {.link_fd = (u32)h->iterator}};
    int fd = call_bpf(BPF_ITER_CREATE, &a);
    if (fd < 0)
        return fd;
    do
        n = read(fd, none, sizeof none);
    while (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)));
    rc = n < 0 ? -errno : 0;
    close(fd);
    return rc;
}

static void write_row(struct accounting_row *row, u64 key, const struct job *job, u64 reading, u64 now_ns)
{
    int has_tasks = job->reading == reading;
    *row = (struct accounting_row){.key = key, .made_ns = job->made_ns, .removed_ns = job->removed_ns,
        .oldest_ns = job->oldest_ns, .forked = job->forked, .entered = job->entered, .left = job->left,
        .ended = job->ended, .oom_kills = job->oom_kills, .present = job->present,
        .largest_process = job->largest_process, .implausible = job->implausible, .root = job->root};
    row->is_final = job->removed_ns && (!job->present || now_ns > job->removed_ns + FINAL_NS);
    for (int i = 0; i < COUNTERS; i++)
        row->counters[i] = has_tasks ? job->snapshot[i] + job->live[i] : job->settled[i];
    for (int i = 0; i < GAUGES; i++)
        row->gauges[i] = has_tasks ? job->gauges[i] : 0;
    memcpy(row->name, job->name, NAME_SIZE);
    memcpy(row->parent_name, job->parent_name, PARENT_NAME_SIZE);
}

int accounting_fd(const struct accounting *h) { return h->maps[MAP_ENDS]; }

void accounting_rest(struct accounting *h)
{
    __atomic_store_n(h->consumed, __atomic_load_n(h->produced, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

int accounting_read(struct accounting *h, struct accounting_row *rows, size_t max)
{
    int rc = read_tasks(h);
    return rc ? rc : accounting_list(h, rows, max);
}

int accounting_list(struct accounting *h, struct accounting_row *rows, size_t max)
{
    struct timespec now;
    size_t n = 0;
    u32 position = 0;
    int rc, is_last = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    u64 now_ns = (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
    for (u32 *from = NULL; !is_last; from = &position) {
        union bpf_attr a = {.batch = {.in_batch = (u64)(uintptr_t)from, .out_batch = (u64)(uintptr_t)&position,
            .keys = (u64)(uintptr_t)h->keys, .values = (u64)(uintptr_t)h->jobs, .count = BATCH,
            .map_fd = (u32)h->maps[MAP_JOBS]}};
        rc = call_bpf(BPF_MAP_LOOKUP_BATCH, &a);
        if (rc && rc != -ENOENT)
            return rc;
        is_last = rc == -ENOENT;
        for (u32 i = 0; i < a.batch.count && n < max; i++)
            write_row(&rows[n++], h->keys[i], &h->jobs[i], h->reading, now_ns);
    }
    return (int)n;
}
