/* Tests of job_accounting.c; prints what fails, exit status 1 then. Where the kernel takes no programs, those of refusals
 * alone. */
#define _GNU_SOURCE
#include "job_accounting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failures;
static char errors[1 << 20];
static struct accounting_row rows[64];

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition); \
            failures++;                                                                             \
        }                                                                                           \
    } while (0)

static const u32 hierarchies[] = {HIERARCHY_CPUSET, HIERARCHY_V2, HIERARCHY_FREEZER, HIERARCHY_MEMORY, HIERARCHY_PIDS};

static int open_programs(const char *object, size_t count, const char *pins, struct accounting **handle)
{
    return accounting_open(object, hierarchies, count, 64, 1024, pins, errors, sizeof errors, handle);
}

static void test_wrong_arguments_are_refused(void)
{
    struct accounting *handle = NULL;
    CHECK(open_programs("accounting.bpf.o", 0, NULL, &handle) == -EINVAL);
    CHECK(open_programs("accounting.bpf.o", MAX_HIERARCHIES + 1, NULL, &handle) == -EINVAL);
    CHECK(accounting_open("accounting.bpf.o", hierarchies, 1, 0, 1, NULL, errors, sizeof errors, &handle) == -EINVAL);
    CHECK(accounting_open("accounting.bpf.o", hierarchies, 1, 1, 1, NULL, errors, 0, &handle) == -EINVAL);
    CHECK(open_programs("absent.bpf.o", 1, NULL, &handle) < 0 && *errors);
    CHECK(handle == NULL);
    accounting_close(NULL);
}

static void test_pins_of_a_start_that_was_killed_are_removed(void)
{
    char folder[] = "/tmp/test_job_accounting_XXXXXX", path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/jobs", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    CHECK(accounting_unpin(folder) == 0);
    CHECK(access(folder, F_OK) != 0);
    CHECK(accounting_unpin(folder) == 0);
}

static void test_programs(struct accounting *handle)
{
    const u64 keys[] = {1ull << HIERARCHY_SHIFT | 7, 2ull << HIERARCHY_SHIFT | 7};
    const struct root roots[] = {{.depth = 1}, {.depth = MAX_ROOT_DEPTH, .oar3 = 1}}, bad = {.depth = MAX_ROOT_DEPTH + 1};
    struct losses losses;
    CHECK(accounting_set_roots(handle, keys, &bad, 1) == -EINVAL);
    CHECK(accounting_set_roots(handle, keys, roots, 2) == 0);
    CHECK(accounting_set_roots(handle, keys + 1, roots, 1) == 0);
    CHECK(accounting_set_roots(handle, NULL, NULL, 0) == 0);
    CHECK(accounting_read(handle, rows, 64) == 0);
    CHECK(accounting_add_job(handle, keys[0], keys[1], "oar", "ann_7") == 0);
    CHECK(accounting_add_job(handle, keys[0], keys[1], "oar", "ann_7") == -EEXIST);
    CHECK(accounting_read(handle, rows, 64) == 1);
    CHECK(rows[0].key == keys[0] && !strcmp(rows[0].name, "ann_7") && rows[0].root == keys[1] && rows[0].made_ns && !rows[0].is_final);
    CHECK(accounting_read(handle, rows, 0) == 0);
    CHECK(accounting_list(handle, rows, 64) == 1);
    CHECK(accounting_fd(handle) >= 0);
    accounting_rest(handle);
    CHECK(accounting_forget(handle, keys[0]) == 0);
    CHECK(accounting_forget(handle, keys[0]) == -ENOENT);
    CHECK(accounting_read(handle, rows, 64) == 0);
    CHECK(accounting_losses(handle, &losses) == 0 && !losses.jobs_full && !losses.tasks_full);
}

static void test_pinned_programs_are_taken_over(void)
{
    const char *pins = "/sys/fs/bpf/colmet-c-test";
    struct accounting *handle;
    if (accounting_unpin(pins) || mkdir(pins, 0700) || rmdir(pins)) {
        fprintf(stderr, "test_job_accounting: pins not tested: no bpffs at /sys/fs/bpf\n");
        return;
    }
    for (int start = 0; start < 3; start++) {
        int rc = open_programs("accounting.bpf.o", 2, pins, &handle);
        CHECK(rc == (start > 0));
        if (rc < 0)
            break;
        CHECK(start ? accounting_read(handle, rows, 64) == 1 : accounting_add_job(handle, 7, 0, "", "bob_8") == 0);
        accounting_close(handle);
    }
    CHECK(accounting_unpin(pins) == 0);
}

int main(int count, char **words)
{
    struct accounting *handle;
    test_wrong_arguments_are_refused();
    test_pins_of_a_start_that_was_killed_are_removed();
    if (count > 1 && !strcmp(words[1], "refusals"))
        return failures != 0;
    if (open_programs("accounting.bpf.o", 2, NULL, &handle)) {
        char *end = strrchr(errors, '\n');
        fprintf(stderr, "test_job_accounting: this machine takes no programs: %.200s\n", end && end - errors > 200 ? end - 200 : errors);
    } else {
        test_programs(handle);
        accounting_close(handle);
        test_pinned_programs_are_taken_over();
    }
    return failures != 0;
}
