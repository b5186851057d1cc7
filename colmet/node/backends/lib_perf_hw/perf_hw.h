/* Counts of perf events of one cgroup, summed over CPUs.
 *
 * Every function returns 0 or -errno, where nothing else is said. A handle is to be used by one thread at a time.
 */
#ifndef COLMET_PERF_HW_H
#define COLMET_PERF_HW_H

#include <stddef.h>
#include <stdint.h>

#define PERF_HW_API __attribute__((visibility("default")))

/* Changes whenever a structure, a function or its arguments do. */
#define PERF_HW_ABI 2

/* As perf_event_open(2) has them in struct perf_event_attr. */
struct perf_hw_event {
    uint64_t type;
    uint64_t config;
    uint64_t config1;
    uint64_t config2;
};

/* Since the handle was opened, summed over its CPUs; all 0 for an event that was refused. */
struct perf_hw_count {
    uint64_t value;      /* events counted, not scaled; ns for clocks */
    uint64_t enabled_ns; /* time that tasks of the cgroup ran */
    uint64_t running_ns; /* time of it in which the event had a counter and was counted */
};

struct perf_hw;

PERF_HW_API int lib_perf_hw_abi(void);

/* Starts counting.
 *
 * cgroup_fd: a directory in the hierarchy that has perf_event; -1 for the calling thread, which shows what is to be had.
 * errors: for each event 0, or the errno with which it was refused; the others are counted.
 * handle: where the handle goes.
 *
 * An event that one of the CPUs refuses (ENOENT, EOPNOTSUPP, ENODEV, EINVAL) is counted on none. Whatever else fails
 * (EMFILE, EACCES, EBADF for what is no cgroup, ENOENT for a cgroup that is gone or that perf_event does not know) is
 * returned, and nothing stays open.
 */
PERF_HW_API int perf_hw_open(int cgroup_fd, const struct perf_hw_event *events, size_t event_count, const int *cpus,
                             size_t cpu_count, int *errors, struct perf_hw **handle);

/* Reads all counts; also when the cgroup is gone meanwhile. event_count is that of perf_hw_open. */
PERF_HW_API int perf_hw_read(struct perf_hw *handle, struct perf_hw_count *counts, size_t event_count);

/* Counts one event no more; its counts are 0 from then on, those of the others go on. Returns how many descriptors that
 * gives back: none for a software event that is read together with others, which goes on as well. */
PERF_HW_API int perf_hw_drop(struct perf_hw *handle, size_t event);

/* Gives all descriptors and memory back; NULL is nothing. */
PERF_HW_API void perf_hw_close(struct perf_hw *handle);

#endif
