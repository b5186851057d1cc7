/* The kernel's accounting of tasks, summed up by job inside the kernel (accounting.bpf.c), for one reader.
 *
 * Functions return 0 or more, or -errno. A handle is used by one thread at a time. libbpf 1 is loaded where programs are;
 * nothing else needs it.
 */
#ifndef COLMET_JOB_ACCOUNTING_H
#define COLMET_JOB_ACCOUNTING_H

#include <stddef.h>
#include "accounting.h"

#define ACCOUNTING_API __attribute__((visibility("default")))

/* A job's directory: sums since it was made, entered, or since the programs were loaded. */
struct accounting_row {
    u64 key;             /* hierarchy and inode number */
    u64 is_final;        /* 1: it is removed, and nothing will change */
    u64 made_ns, removed_ns, oldest_ns;
    u64 forked, entered, left, ended, oom_kills, present, largest_process, implausible;
    u64 root;
    u64 counters[COUNTERS];
    u64 gauges[GAUGES];
    char name[NAME_SIZE];
    char parent_name[PARENT_NAME_SIZE];
};

struct accounting;

ACCOUNTING_API int lib_bpf_abi(void);

/* Load and attach the programs of the file `object`, or take over pinned ones (returns 1: hierarchies and sizes stay those
 * of their load). Needs CAP_BPF and CAP_PERFMON; before Linux 5.11 CAP_SYS_RESOURCE, too; before 5.8 CAP_SYS_ADMIN.
 *
 * hierarchies: `count` of enum hierarchy, the best first
 * pins: a directory of a bpffs where programs go on counting while nobody has them open; NULL: none
 * errors: what libbpf and the verifier said, cut to `size`
 * -ENOSYS: no libbpf 1 */
ACCOUNTING_API int accounting_open(const char *object, const u32 *hierarchies, size_t count, u32 max_jobs, u32 max_tasks,
                                   const char *pins, char *errors, size_t size, struct accounting **handle);

/* Have the directories of jobs below these roots, and no others, counted from their making on. */
ACCOUNTING_API int accounting_set_roots(struct accounting *handle, const u64 *keys, const struct root *roots, size_t count);

/* Have a directory that exists counted; its tasks are entered by the next reading. root: 0 for none. -EEXIST: it is. */
ACCOUNTING_API int accounting_add_job(struct accounting *handle, u64 key, u64 root, const char *parent_name, const char *name);

/* Read all tasks, and write the rows of at most `max` directories; returns their number. */
ACCOUNTING_API int accounting_read(struct accounting *handle, struct accounting_row *rows, size_t max);

/* The same without reading tasks: counters and gauges of live ones are those of the last reading. */
ACCOUNTING_API int accounting_list(struct accounting *handle, struct accounting_row *rows, size_t max);

/* A descriptor that is readable once a task of a job has ended since the last accounting_rest(). */
ACCOUNTING_API int accounting_fd(const struct accounting *handle);
ACCOUNTING_API void accounting_rest(struct accounting *handle);

/* Forget a directory, after its last row. */
ACCOUNTING_API int accounting_forget(struct accounting *handle, u64 key);

ACCOUNTING_API int accounting_losses(struct accounting *handle, struct losses *losses);
ACCOUNTING_API void accounting_close(struct accounting *handle);

/* Remove pins, which ends the counting unless a handle is open. */
ACCOUNTING_API int accounting_unpin(const char *pins);

#endif
