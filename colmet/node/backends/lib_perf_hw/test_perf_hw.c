/* Tests of the library against the running kernel; as root, with a cgroup in which perf_event counts. */
#define _GNU_SOURCE
#include "perf_hw.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define PAGES 2000
#define STARTS 1000

static const struct perf_hw_event FAULTS = {.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_PAGE_FAULTS};
static const struct perf_hw_event CLOCK = {.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_TASK_CLOCK};
static const struct perf_hw_event DUMMY = {.type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_DUMMY};
static const struct perf_hw_event NONE = {.type = PERF_TYPE_SOFTWARE, .config = 0xfffff};
static const struct perf_hw_event NO_PMU = {.type = 0x7ffffff};
static const struct perf_hw_event INVALID = {.type = PERF_TYPE_BREAKPOINT}; /* on no kind of access */

static int *cpus;
static size_t cpu_count;
static char root_path[4096], group_path[4200];
static char own_mount[] = "/tmp/colmet-test-XXXXXX";

static size_t descriptors(void)
{
    size_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static void touch_pages(void)
{
    size_t bytes = (size_t)PAGES * (size_t)sysconf(_SC_PAGESIZE);
    volatile char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    madvise((void *)pages, bytes, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < bytes; at += (size_t)sysconf(_SC_PAGESIZE))
        pages[at] = 1;
    munmap((void *)pages, bytes);
}

/* The number of the hierarchy that has perf_event: 0 is cgroup v2's. */
static int perf_hierarchy(void)
{
    char line[256];
    int number = 0;
    FILE *controllers = fopen("/proc/cgroups", "re");
    CHECK(controllers != NULL);
    while (fgets(line, sizeof line, controllers) != NULL)
        if (sscanf(line, "perf_event %d", &number) == 1)
            break;
    fclose(controllers);
    return number;
}

/* Finds where perf_event counts: a v1 hierarchy that has it, else v2. A v1 hierarchy that was unmounted while somebody
 * was still in one of its groups keeps perf_event, with no mount point: it is mounted for the time of these tests. */
static void find_root(void)
{
    char line[8192], point[4096], kind[64], options[2048];
    bool v1 = false;
    FILE *mounts = fopen("/proc/self/mounts", "re");
    CHECK(mounts != NULL);
    while (!v1 && fgets(line, sizeof line, mounts) != NULL) {
        if (sscanf(line, "%*s %4095s %63s %2047s", point, kind, options) != 3)
            continue;
        v1 = strcmp(kind, "cgroup") == 0 && strstr(options, "perf_event") != NULL;
        if (v1 || (strcmp(kind, "cgroup2") == 0 && root_path[0] == '\0'))
            memcpy(root_path, point, sizeof root_path);
    }
    fclose(mounts);
    if (!v1 && perf_hierarchy() != 0 && mkdtemp(own_mount) != NULL) {
        CHECK(mount("colmet-test", own_mount, "cgroup", 0, "perf_event") == 0);
        memcpy(root_path, own_mount, sizeof own_mount);
    }
}

/* Makes a group where perf_event counts. False where there is no such place. */
static bool make_group(void)
{
    find_root();
    snprintf(group_path, sizeof group_path, "%s/colmet-test-%d", root_path, (int)getpid());
    return root_path[0] != '\0' && mkdir(group_path, 0755) == 0;
}

static int open_group(void)
{
    int fd = open(group_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static void enter(const char *group)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/cgroup.procs", group);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, "0", 1) == 1);
    close(fd);
}

static void remove_group(void)
{
    CHECK(rmdir(group_path) == 0);
}

/* Also where a test fails. */
static void clean_up(void)
{
    rmdir(group_path);
    if (strcmp(root_path, own_mount) == 0) {
        umount(own_mount);
        rmdir(own_mount);
    }
}

static struct perf_hw *open_events(int fd, const struct perf_hw_event *events, size_t count, int *errors)
{
    struct perf_hw *handle;
    CHECK(perf_hw_open(fd, events, count, cpus, cpu_count, errors, &handle) == 0);
    return handle;
}

static void test_wrong_arguments(void)
{
    struct perf_hw *handle;
    struct perf_hw_event many[65] = {{0}};
    struct perf_hw_count counts[2];
    int errors[65];
    CHECK(lib_perf_hw_abi() == PERF_HW_ABI);
    CHECK(perf_hw_open(-1, NULL, 1, cpus, 1, errors, &handle) == -EINVAL);
    CHECK(perf_hw_open(-1, &FAULTS, 1, NULL, 1, errors, &handle) == -EINVAL);
    CHECK(perf_hw_open(-1, &FAULTS, 1, cpus, 1, NULL, &handle) == -EINVAL);
    CHECK(perf_hw_open(-1, &FAULTS, 1, cpus, 1, errors, NULL) == -EINVAL);
    CHECK(perf_hw_open(-1, &FAULTS, 0, cpus, 1, errors, &handle) == -EINVAL);
    CHECK(perf_hw_open(-1, &FAULTS, 1, cpus, 0, errors, &handle) == -EINVAL);
    CHECK(perf_hw_open(-1, many, 65, cpus, 1, errors, &handle) == -EINVAL);
    CHECK(perf_hw_open(-1, &FAULTS, 1, cpus, SIZE_MAX / 2, errors, &handle) == -ENOMEM && handle == NULL);
    CHECK(perf_hw_read(NULL, counts, 1) == -EINVAL);
    handle = open_events(-1, &FAULTS, 1, errors);
    CHECK(perf_hw_read(handle, counts, 2) == -EINVAL);
    CHECK(perf_hw_read(handle, NULL, 1) == -EINVAL);
    perf_hw_close(handle);
    perf_hw_close(NULL);
}

static void test_what_is_refused_leaves_the_others(void)
{
    /* refused ones first, between and last: the group has to find its leader and its order */
    const struct perf_hw_event events[] = {NONE, NO_PMU, CLOCK, NONE, FAULTS, DUMMY, NO_PMU};
    const size_t count = sizeof events / sizeof events[0];
    struct perf_hw_count counts[sizeof events / sizeof events[0]];
    int errors[sizeof events / sizeof events[0]];
    struct perf_hw *handle = open_events(-1, events, count, errors);
    touch_pages();
    CHECK(perf_hw_read(handle, counts, count) == 0);
    perf_hw_close(handle);
    CHECK(errors[0] == ENOENT && errors[1] == ENOENT && errors[3] == ENOENT && errors[6] == ENOENT);
    CHECK(errors[2] == 0 && errors[4] == 0 && errors[5] == 0);
    CHECK(counts[4].value >= PAGES && counts[4].value < 2 * PAGES);
    CHECK(counts[2].value > 0 && counts[2].running_ns > 0);
    CHECK(counts[5].value == 0 && counts[5].enabled_ns > 0);
    CHECK(counts[0].enabled_ns == 0 && counts[6].value == 0);

    const struct perf_hw_event refused[] = {NONE, INVALID};
    handle = open_events(-1, refused, 2, errors);
    CHECK(perf_hw_read(handle, counts, 2) == 0 && counts[0].value == 0);
    CHECK(errors[0] == ENOENT && errors[1] == EINVAL);
    perf_hw_close(handle);
}

static void test_a_group_is_counted_and_read_when_it_is_gone(void)
{
    /* the clock first: as the leader of a group it would starve the faults */
    const struct perf_hw_event events[] = {CLOCK, FAULTS, DUMMY, FAULTS};
    struct perf_hw_count before[4], after[4];
    int errors[4];
    int fd = open_group();
    struct perf_hw *handle = open_events(fd, events, 4, errors);
    close(fd);
    touch_pages(); /* not in the group */
    CHECK(perf_hw_read(handle, before, 4) == 0 && before[0].value == 0 && before[1].value == 0);
    enter(group_path);
    touch_pages();
    enter(root_path);
    CHECK(perf_hw_read(handle, before, 4) == 0);
    remove_group();
    CHECK(perf_hw_read(handle, after, 4) == 0);
    CHECK(before[0].value > 0 && before[1].value >= PAGES && before[1].value < 2 * PAGES);
    for (size_t n = 0; n < 4; n++) {
        CHECK(after[n].value == before[n].value);
        CHECK(after[n].enabled_ns > 0 && after[n].running_ns == after[n].enabled_ns); /* software never waits */
    }
    CHECK(after[2].value == 0 && after[3].value == after[1].value);
    perf_hw_close(handle);
    CHECK(mkdir(group_path, 0755) == 0);
}

static void test_an_event_is_dropped_and_the_others_go_on(void)
{
    const struct perf_hw_event events[] = {CLOCK, FAULTS, DUMMY, NONE};
    struct perf_hw_count before[4], after[4];
    int errors[4];
    size_t descriptors_before = descriptors();
    struct perf_hw *handle = open_events(-1, events, 4, errors);
    size_t opened = descriptors() - descriptors_before;
    touch_pages();
    CHECK(perf_hw_read(handle, before, 4) == 0 && before[0].value > 0);
    CHECK(perf_hw_drop(handle, 4) == -EINVAL && perf_hw_drop(NULL, 0) == -EINVAL);
    CHECK(perf_hw_drop(handle, 3) == 0); /* it was refused */
    CHECK(perf_hw_drop(handle, 1) == 0);
    CHECK(descriptors() - descriptors_before == opened);
    CHECK(perf_hw_drop(handle, 0) == (int)cpu_count && perf_hw_drop(handle, 0) == 0);
    CHECK(descriptors() - descriptors_before == opened - cpu_count);
    touch_pages();
    CHECK(perf_hw_read(handle, after, 4) == 0);
    CHECK(after[0].value == 0 && after[0].enabled_ns == 0);
    CHECK(after[1].value >= before[1].value + PAGES && after[2].enabled_ns > before[2].enabled_ns);
    perf_hw_close(handle);
    CHECK(descriptors() == descriptors_before);
}

static void test_what_is_no_group_fails_as_a_whole(void)
{
    struct perf_hw *handle;
    int errors[1];
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(fd >= 0 && perf_hw_open(fd, &FAULTS, 1, cpus, cpu_count, errors, &handle) == -EBADF && handle == NULL);
    close(fd);
    fd = open_group();
    remove_group();
    CHECK(perf_hw_open(fd, &FAULTS, 1, cpus, cpu_count, errors, &handle) == -ENOENT && handle == NULL);
    close(fd);
    CHECK(mkdir(group_path, 0755) == 0);
}

static void test_too_few_descriptors_leave_none_open(void)
{
    enum { MANY = 60 };
    struct perf_hw_event events[MANY];
    int errors[MANY];
    struct perf_hw *handle;
    struct rlimit limit, low;
    for (size_t n = 0; n < MANY; n++)
        events[n] = n % 2 ? FAULTS : NONE;
    int fd = open_group();
    size_t before = descriptors();
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit;
    low.rlim_cur = (rlim_t)before + 10;
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    int rc = perf_hw_open(fd, events, MANY, cpus, cpu_count, errors, &handle);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(rc == -EMFILE && handle == NULL);
    CHECK(descriptors() == before);
    close(fd);
}

static void test_starts_leave_nothing_behind(void)
{
    const struct perf_hw_event events[] = {FAULTS, NO_PMU, CLOCK};
    struct perf_hw_count counts[3];
    int errors[3];
    size_t before = descriptors();
    for (int n = 0; n < STARTS; n++) {
        int fd = open_group();
        struct perf_hw *handle = open_events(fd, events, 3, errors);
        close(fd);
        CHECK(perf_hw_read(handle, counts, 3) == 0);
        perf_hw_close(handle);
    }
    CHECK(descriptors() == before);
}

int main(void)
{
    cpu_count = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    cpus = malloc(cpu_count * sizeof *cpus);
    CHECK(cpus != NULL);
    for (size_t n = 0; n < cpu_count; n++)
        cpus[n] = (int)n;
    atexit(clean_up);
    if (geteuid() != 0 || !make_group()) {
        fprintf(stderr, "test_perf_hw: not run: it needs root and a cgroup hierarchy that has perf_event\n");
        free(cpus);
        return getenv("CI") != NULL; /* there it has to run */
    }
    test_wrong_arguments();
    test_what_is_refused_leaves_the_others();
    test_a_group_is_counted_and_read_when_it_is_gone();
    test_an_event_is_dropped_and_the_others_go_on();
    test_what_is_no_group_fails_as_a_whole();
    test_too_few_descriptors_leave_none_open();
    test_starts_leave_nothing_behind();
    free(cpus);
    printf("test_perf_hw: all passed, %d starts\n", STARTS);
    return 0;
}
