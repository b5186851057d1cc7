#define _GNU_SOURCE
#include "perf_hw.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_EVENTS 64

/* Groups of events: the kernel counts a group as a whole or not at all. One group of hardware events would count nothing
 * if it needed more counters than the CPU has, less those of the watchdog and of other users of perf. So each hardware
 * event is a group of its own, and the kernel multiplexes them. Software events need no counter: they form one group,
 * read by one system call a CPU. The clocks are not in it: each is a PMU of its own in the kernel, and with a clock as
 * leader, page faults of the same group are not counted (seen on Linux 6.18). */
struct perf_hw {
    size_t event_count;
    size_t cpu_count;
    bool *counted; /* by event */
    bool *grouped; /* by event: one of the group of software events */
    int *fds;      /* [cpu * event_count + event], -1 for none */
};

/* The result of read(2) with the format below. */
struct group_read {
    uint64_t nr;
    uint64_t enabled_ns;
    uint64_t running_ns;
    uint64_t values[MAX_EVENTS];
};

#define READ_FORMAT (PERF_FORMAT_GROUP | PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)

int lib_perf_hw_abi(void)
{
    return PERF_HW_ABI;
}

static int open_event(int cgroup_fd, const struct perf_hw_event *event, int cpu, int leader)
{
    struct perf_event_attr attr = {
        .type = (uint32_t)event->type,
        .size = PERF_ATTR_SIZE_VER1, /* known by every kernel since 2.6.39 */
        .config = event->config,
        .config1 = event->config1,
        .config2 = event->config2,
        .read_format = READ_FORMAT,
    };
    unsigned long flags = PERF_FLAG_FD_CLOEXEC;
    if (cgroup_fd >= 0)
        flags |= PERF_FLAG_PID_CGROUP;
    int fd = (int)syscall(SYS_perf_event_open, &attr, cgroup_fd >= 0 ? cgroup_fd : 0, cpu, leader, flags);
    return fd < 0 ? -errno : fd;
}

static bool needs_no_counter(const struct perf_hw_event *event)
{
    return event->type == PERF_TYPE_SOFTWARE && event->config != PERF_COUNT_SW_CPU_CLOCK &&
           event->config != PERF_COUNT_SW_TASK_CLOCK;
}

static bool is_refusal(int rc)
{
    return rc == -ENOENT || rc == -EOPNOTSUPP || rc == -ENODEV || rc == -EINVAL;
}

static void close_all(struct perf_hw *handle)
{
    for (size_t n = 0; n < handle->cpu_count * handle->event_count; n++) {
        if (handle->fds[n] >= 0)
            close(handle->fds[n]);
        handle->fds[n] = -1;
    }
}

/* Open every counted event on every CPU; `culprit` is the failed event. */
static int open_all(struct perf_hw *handle, int cgroup_fd, const struct perf_hw_event *events, const int *cpus,
                    size_t *culprit)
{
    for (size_t cpu = 0; cpu < handle->cpu_count; cpu++) {
        int *fds = handle->fds + cpu * handle->event_count;
        int leader = -1;
        for (size_t n = 0; n < handle->event_count; n++) {
            if (!handle->counted[n])
                continue;
            int fd = open_event(cgroup_fd, &events[n], cpus[cpu], handle->grouped[n] ? leader : -1);
            if (fd < 0) {
                *culprit = n;
                return fd;
            }
            fds[n] = fd;
            if (handle->grouped[n] && leader < 0)
                leader = fd;
        }
    }
    return 0;
}

/* Test whether cgroup, CPU and permissions allow to count a clock, an event of every kernel. ENOENT also means a removed
 * cgroup. */
static int try_anything(int cgroup_fd, int cpu)
{
    const struct perf_hw_event clock = {.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_CPU_CLOCK};
    int fd = open_event(cgroup_fd, &clock, cpu, -1);
    if (fd < 0)
        return fd;
    close(fd);
    return 0;
}

int perf_hw_open(int cgroup_fd, const struct perf_hw_event *events, size_t event_count, const int *cpus,
                 size_t cpu_count, int *errors, struct perf_hw **out)
{
    struct perf_hw *handle = NULL;
    int rc = -ENOMEM;

    if (events == NULL || cpus == NULL || errors == NULL || out == NULL || event_count == 0 ||
        event_count > MAX_EVENTS || cpu_count == 0)
        return -EINVAL;
    *out = NULL;
    handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        goto fail;
    handle->event_count = event_count;
    handle->counted = calloc(event_count, sizeof *handle->counted);
    handle->grouped = calloc(event_count, sizeof *handle->grouped);
    if (cpu_count <= SIZE_MAX / sizeof *handle->fds / event_count)
        handle->fds = malloc(cpu_count * event_count * sizeof *handle->fds);
    if (handle->counted == NULL || handle->grouped == NULL || handle->fds == NULL)
        goto fail;
    handle->cpu_count = cpu_count;
    for (size_t n = 0; n < cpu_count * event_count; n++)
        handle->fds[n] = -1;
    for (size_t n = 0; n < event_count; n++) {
        errors[n] = 0;
        handle->counted[n] = true;
        handle->grouped[n] = needs_no_counter(&events[n]);
    }
    for (;;) { /* each round with one event less */
        size_t culprit = 0;
        rc = open_all(handle, cgroup_fd, events, cpus, &culprit);
        if (rc == 0)
            break;
        close_all(handle);
        if (!is_refusal(rc))
            goto fail;
        errors[culprit] = -rc;
        handle->counted[culprit] = false;
        for (size_t cpu = 0; cpu < cpu_count; cpu++) {
            rc = try_anything(cgroup_fd, cpus[cpu]);
            if (rc != 0)
                goto fail;
        }
    }
    *out = handle;
    return 0;

fail:
    perf_hw_close(handle);
    return rc;
}

static int read_group(int fd, size_t members, struct group_read *group)
{
    size_t wanted = offsetof(struct group_read, values) + members * sizeof group->values[0];
    ssize_t got;
    do
        got = read(fd, group, wanted);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    return (size_t)got == wanted && group->nr == members ? 0 : -EIO;
}

static void add(struct perf_hw_count *count, const struct group_read *group, size_t member)
{
    count->value += group->values[member];
    count->enabled_ns += group->enabled_ns;
    count->running_ns += group->running_ns;
}

int perf_hw_read(struct perf_hw *handle, struct perf_hw_count *counts, size_t event_count)
{
    struct group_read group;

    if (handle == NULL || counts == NULL || event_count != handle->event_count)
        return -EINVAL;
    size_t members = 0;
    for (size_t n = 0; n < event_count; n++) {
        counts[n] = (struct perf_hw_count){0};
        members += handle->counted[n] && handle->grouped[n];
    }
    for (size_t cpu = 0; cpu < handle->cpu_count; cpu++) {
        const int *fds = handle->fds + cpu * event_count;
        bool group_is_read = false;
        for (size_t n = 0; n < event_count; n++) {
            if (!handle->counted[n] || (handle->grouped[n] && group_is_read))
                continue;
            int rc = read_group(fds[n], handle->grouped[n] ? members : 1, &group);
            if (rc != 0)
                return rc;
            if (!handle->grouped[n]) {
                add(&counts[n], &group, 0);
                continue;
            }
            group_is_read = true; /* n is its leader: values are in the order of opening */
            for (size_t other = n, member = 0; other < event_count; other++)
                if (handle->counted[other] && handle->grouped[other])
                    add(&counts[other], &group, member++);
        }
    }
    return 0;
}

int perf_hw_drop(struct perf_hw *handle, size_t event)
{
    int closed = 0;

    if (handle == NULL || event >= handle->event_count)
        return -EINVAL;
    if (handle->grouped[event]) /* closing the leader would leave each other event in a group of its own */
        return 0;
    handle->counted[event] = false;
    for (size_t cpu = 0; cpu < handle->cpu_count; cpu++) {
        int *fd = handle->fds + cpu * handle->event_count + event;
        if (*fd >= 0) {
            close(*fd);
            closed++;
        }
        *fd = -1;
    }
    return closed;
}

void perf_hw_close(struct perf_hw *handle)
{
    if (handle == NULL)
        return;
    if (handle->fds != NULL)
        close_all(handle);
    free(handle->fds);
    free(handle->grouped);
    free(handle->counted);
    free(handle);
}
