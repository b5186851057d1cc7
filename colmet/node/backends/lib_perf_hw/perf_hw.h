/* Counts of perf events of one cgroup, summed over CPUs.
 *
 * Functions return 0 or -errno, except as noted. A handle may be used by one thread at a time.
 */
#ifndef COLMET_PERF_HW_H
#define COLMET_PERF_HW_H

#include <stddef.h>
#include <stdint.h>

#define PERF_HW_API __attribute__((visibility("default")))

/* Changes with every change of this interface. */
#define PERF_HW_ABI 2

/* Fields of struct perf_event_attr of perf_event_open(2). */
struct perf_hw_event {
    uint64_t type;
    uint64_t config;
    uint64_t config1;
    uint64_t config2;
};

/* Since the opening of the handle, summed over its CPUs; all 0 for a refused event. */
struct perf_hw_count {
    uint64_t value;      /* events counted, not scaled; ns for clocks */
    uint64_t enabled_ns; /* run time of the cgroup's tasks */
    uint64_t running_ns; /* part of it during which the event had a counter */
};

struct perf_hw;

PERF_HW_API int lib_perf_hw_abi(void);

/* Start counting.
 *
 * cgroup_fd: a directory in the hierarchy with perf_event; -1 for the calling thread, to test for supported events.
 * errors: for each event 0, or the errno of its refusal; the others are counted.
 * handle: the handle; perf_hw_close frees it.
 *
 * An event refused by one of the CPUs (ENOENT, EOPNOTSUPP, ENODEV, EINVAL) is counted on none. Any other failure
 * (EMFILE, EACCES, EBADF for a file that is not a cgroup, ENOENT for a removed cgroup or one without perf_event) is
 * returned, and nothing stays open.
 */
PERF_HW_API int perf_hw_open(int cgroup_fd, const struct perf_hw_event *events, size_t event_count, const int *cpus,
                             size_t cpu_count, int *errors, struct perf_hw **handle);

/* Read all counts, also of a removed cgroup. event_count is that of perf_hw_open. */
PERF_HW_API int perf_hw_read(struct perf_hw *handle, struct perf_hw_count *counts, size_t event_count);

/* Stop counting one event: its counts are 0 from then on. Returns the number of closed descriptors: none for a software
 * event in the group, which continues to count. */
PERF_HW_API int perf_hw_drop(struct perf_hw *handle, size_t event);

/* Close all descriptors and free a handle; NULL is allowed. */
PERF_HW_API void perf_hw_close(struct perf_hw *handle);

#endif
