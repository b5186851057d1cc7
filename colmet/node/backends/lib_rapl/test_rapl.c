/* Tests of rapl.c on trees that it makes in a temporary directory; prints what fails, exit status 1 then. */

#define _GNU_SOURCE

#include "rapl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);                      \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: cannot test: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));          \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

static char root[] = "/tmp/test_rapl_XXXXXX";
static uint64_t energies[RAPL_MAX_ZONES];
static int32_t errors[RAPL_MAX_ZONES];

__attribute__((format(printf, 1, 2))) static const char *at(const char *format, ...)
{
    static char path[512];
    va_list arguments;
    int length = snprintf(path, sizeof path, "%s/", root);

    va_start(arguments, format);
    vsnprintf(path + length, sizeof path - (size_t)length, format, arguments);
    va_end(arguments);
    return path;
}

static void write_bytes(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "w");

    MUST(file != NULL);
    MUST(fwrite(bytes, 1, length, file) == length);
    MUST(fclose(file) == 0);
}

static void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

static void zone(const char *id, const char *name, const char *energy, const char *range)
{
    MUST(mkdir(at("%s", id), 0755) == 0);
    if (name != NULL)
        write_text(at("%s/name", id), name);
    if (energy != NULL)
        write_text(at("%s/energy_uj", id), energy);
    if (range != NULL)
        write_text(at("%s/max_energy_range_uj", id), range);
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status, (void)type;
    return where->level == 0 ? 0 : remove(path);
}

static void clear(void)
{
    MUST(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

static int open_files(void)
{
    DIR *listing = opendir("/proc/self/fd");
    int count = 0;

    MUST(listing != NULL);
    while (readdir(listing) != NULL)
        count++;
    closedir(listing);
    return count;
}

static struct rapl *opened(void)
{
    struct rapl *rapl = NULL;

    MUST(rapl_open(root, &rapl) == 0);
    return rapl;
}

static void two_packages_are_found_in_order_and_read(void)
{
    struct rapl_zone found;
    struct rapl *rapl;

    zone("intel-rapl:1", "package-1\n", "22\n", "262143328850\n");
    zone("intel-rapl:1:0", "dram\n", "222\n", "65712999613\n");
    zone("intel-rapl:0", "package-0\n", "11\n", "262143328850\n");
    zone("intel-rapl:0:1", "dram\n", "1111\n", "65712999613\n");
    zone("intel-rapl:0:0", "core\n", "111\n", "262143328850\n");
    zone("intel-rapl", NULL, NULL, NULL);
    zone("intel-rapl-mmio:0", "package-0\n", "12\n", "262143328850\n");
    rapl = opened();
    CHECK(rapl_count(rapl) == 5);
    CHECK(rapl_left_out(rapl) == 0);
    CHECK(rapl_read(rapl, energies, errors, RAPL_MAX_ZONES) == 5);
    CHECK(energies[0] == 11 && energies[1] == 111 && energies[2] == 1111 && energies[3] == 22 && energies[4] == 222);
    CHECK(rapl_describe(rapl, 2, &found) == 0);
    CHECK(strcmp(found.id, "intel-rapl:0:1") == 0 && strcmp(found.name, "dram") == 0);
    CHECK(found.parent == 0 && found.package == 0 && found.die == -1);
    CHECK(found.max_energy_range_uj == 65712999613);
    CHECK(rapl_describe(rapl, 4, &found) == 0);
    CHECK(found.parent == 3 && found.package == 1);
    CHECK(rapl_describe(rapl, 5, &found) == -EINVAL);
    CHECK(rapl_read(rapl, energies, errors, 4) == -EINVAL);
    write_text(at("intel-rapl:0/energy_uj"), "9223372036854775807\n");
    CHECK(rapl_read(rapl, energies, errors, 5) == 5);
    CHECK(energies[0] == INT64_MAX);
    rapl_close(rapl);
}

static void names_tell_package_and_die(void)
{
    static const struct {
        const char *name;
        int32_t package, die;
    } cases[] = {
        {"package-0", 0, -1},     {"package-12", 12, -1},      {"package-1-die-0", 1, 0}, {"psys", -1, -1},
        {"package-", -1, -1},     {"package-x", -1, -1},       {"package-1-", -1, -1},    {"package-1-die-", -1, -1},
        {"package-01", -1, -1},   {"package-100000", -1, -1},  {"package-1-die-0x", -1, -1},
        {"package--1", -1, -1},   {"package-4294967296", -1, -1},
    };
    struct rapl_zone found;
    struct rapl *rapl;
    char id[32];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(id, sizeof id, "intel-rapl:%zu", i);
        zone(id, cases[i].name, "1\n", "2\n");
        snprintf(id, sizeof id, "intel-rapl:%zu:0", i);
        zone(id, "core\n", "1\n", "2\n");
    }
    rapl = opened();
    CHECK(rapl_count(rapl) == 2 * sizeof cases / sizeof *cases);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t part = 0; part < 2; part++) {
            CHECK(rapl_describe(rapl, 2 * i + part, &found) == 0);
            CHECK(found.package == cases[i].package && found.die == cases[i].die);
            CHECK(found.parent == (part == 0 ? -1 : (int32_t)(2 * i)));
        }
    }
    rapl_close(rapl);
}

static void what_is_no_zone_is_left_alone(void)
{
    static const char *const others[] = {
        "intel-rapl:", "intel-rapl:x", "intel-rapl:0x", "intel-rapl:00", "intel-rapl:-1", "intel-rapl:0:",
        "intel-rapl:0:0:0", "intel-rapl: 0", "intel-rapl:100000", "dtpm:0", "INTEL-RAPL:0",
    };
    struct rapl *rapl;

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        zone(others[i], "package-0\n", "1\n", "2\n");
    rapl = opened();
    CHECK(rapl_count(rapl) == 0);
    CHECK(rapl_left_out(rapl) == 0);
    CHECK(rapl_read(rapl, energies, errors, 0) == 0);
    rapl_close(rapl);
}

static void a_part_without_its_package_stands_alone(void)
{
    struct rapl_zone found;
    struct rapl *rapl;

    zone("intel-rapl:0", "package-0\n", "1\n", "2\n");
    zone("intel-rapl:1:0", "core\n", "1\n", "2\n");
    rapl = opened();
    CHECK(rapl_describe(rapl, 1, &found) == 0);
    CHECK(found.parent == -1 && found.package == -1 && found.die == -1);
    rapl_close(rapl);
}

static void names_of_another_form_are_left_out(void)
{
    char longest[RAPL_NAME_BYTES + 8];
    struct rapl *rapl;

    zone("intel-rapl:0", NULL, "1\n", "2\n");
    zone("intel-rapl:1", "", "1\n", "2\n");
    zone("intel-rapl:2", "\n", "1\n", "2\n");
    zone("intel-rapl:3", "a b\n", "1\n", "2\n");
    zone("intel-rapl:4", "a\033[31m\n", "1\n", "2\n");
    zone("intel-rapl:5", "a\nb\n", "1\n", "2\n");
    memset(longest, 'a', sizeof longest);
    zone("intel-rapl:6", NULL, "1\n", "2\n");
    write_bytes(at("intel-rapl:6/name"), longest, RAPL_NAME_BYTES);
    zone("intel-rapl:7", NULL, "1\n", "2\n");
    write_bytes(at("intel-rapl:7/name"), "a\0b", 3);
    zone("intel-rapl:8", NULL, "1\n", "2\n");
    write_bytes(at("intel-rapl:8/name"), longest, RAPL_NAME_BYTES - 1);
    rapl = opened();
    CHECK(rapl_count(rapl) == 1);
    CHECK(rapl_left_out(rapl) == 8);
    rapl_close(rapl);
}

static void what_is_no_number_is_an_error_of_its_zone_alone(void)
{
    static const char *const texts[] = {
        "", "\n", "x\n", "-1\n", "+1\n", " 1\n", "1 \n", "0x1\n", "1.5\n", "1\n\n", "1\n2\n", "9223372036854775808\n",
        "99999999999999999999999\n", "000000000000000000000000000001\n",
    };
    const size_t count = sizeof texts / sizeof *texts;
    struct rapl_zone found;
    struct rapl *rapl;
    char id[32];
    int before;

    for (size_t i = 0; i < count; i++) {
        snprintf(id, sizeof id, "intel-rapl:%zu", i);
        zone(id, "package-0\n", texts[i], texts[i]);
    }
    snprintf(id, sizeof id, "intel-rapl:%zu", count);
    zone(id, "package-1\n", "5", "6"); /* without a newline it is one */
    rapl = opened();
    before = open_files();
    CHECK(rapl_count(rapl) == count + 1);
    CHECK(rapl_read(rapl, energies, errors, RAPL_MAX_ZONES) == 1);
    for (size_t i = 0; i < count; i++) {
        CHECK(errors[i] == -EPROTO && energies[i] == 0);
        CHECK(rapl_describe(rapl, i, &found) == 0 && found.max_energy_range_uj == 0);
    }
    CHECK(errors[count] == 0 && energies[count] == 5);
    CHECK(open_files() == before + 1);
    rapl_close(rapl);
}

static void a_zone_goes_and_comes_back(void)
{
    struct rapl *rapl;

    zone("intel-rapl:0", "package-0\n", "1\n", "9\n");
    zone("intel-rapl:1", "package-1\n", "2\n", "9\n");
    rapl = opened();
    CHECK(rapl_read(rapl, energies, errors, 2) == 2);
    write_text(at("intel-rapl:0/energy_uj"), "garbage\n");
    CHECK(rapl_read(rapl, energies, errors, 2) == 1);
    CHECK(errors[0] == -EPROTO && energies[1] == 2);
    MUST(remove(at("intel-rapl:0/energy_uj")) == 0);
    CHECK(rapl_read(rapl, energies, errors, 2) == 1);
    CHECK(errors[0] == -ENOENT);
    write_text(at("intel-rapl:0/energy_uj"), "3\n");
    CHECK(rapl_read(rapl, energies, errors, 2) == 2);
    CHECK(energies[0] == 3);
    rapl_close(rapl);
}

static void hostile_trees_end(void)
{
    struct rapl *rapl;

    MUST(symlink("intel-rapl:0", at("intel-rapl:0")) == 0);
    MUST(symlink(".", at("intel-rapl:1")) == 0);
    zone("intel-rapl:2", "package-2\n", NULL, NULL);
    MUST(symlink("energy_uj", at("intel-rapl:2/energy_uj")) == 0);
    zone("intel-rapl:3", "package-3\n", NULL, "/");
    MUST(mkfifo(at("intel-rapl:3/energy_uj"), 0600) == 0);
    zone("intel-rapl:4", "package-4\n", NULL, NULL);
    MUST(mkdir(at("intel-rapl:4/energy_uj"), 0700) == 0);
    zone("intel-rapl:5", "package-5\n", NULL, NULL);
    MUST(symlink("/dev/zero", at("intel-rapl:5/energy_uj")) == 0);
    rapl = opened();
    CHECK(rapl_count(rapl) == 4);
    CHECK(rapl_left_out(rapl) == 2);
    CHECK(rapl_read(rapl, energies, errors, RAPL_MAX_ZONES) == 0);
    CHECK(errors[0] == -ELOOP && errors[1] == -ESPIPE && errors[2] == -EISDIR && errors[3] == -EPROTO);
    rapl_close(rapl);
}

static void zones_are_bounded(void)
{
    struct rapl *rapl;
    char id[32];

    for (int i = 0; i < RAPL_MAX_ZONES + 3; i++) {
        snprintf(id, sizeof id, "intel-rapl:%d", i);
        zone(id, "package-0\n", "1\n", "2\n");
    }
    rapl = opened();
    CHECK(rapl_count(rapl) == RAPL_MAX_ZONES);
    CHECK(rapl_left_out(rapl) == 3);
    CHECK(rapl_read(rapl, energies, errors, RAPL_MAX_ZONES) == RAPL_MAX_ZONES);
    rapl_close(rapl);
}

static void a_directory_that_cannot_be_read_is_an_error(void)
{
    struct rapl *rapl = NULL;
    int before = open_files();

    CHECK(rapl_open(at("none"), &rapl) == -ENOENT);
    write_text(at("file"), "");
    CHECK(rapl_open(at("file"), &rapl) == -ENOTDIR);
    CHECK(rapl == NULL);
    rapl_close(NULL);
    CHECK(open_files() == before);
}

static void what_only_root_may_read_is_told(void)
{
    int status;
    pid_t child;

    zone("intel-rapl:0", "package-0\n", "1\n", "2\n");
    MUST(chmod(at("intel-rapl:0/energy_uj"), 0400) == 0);
    MUST(chmod(root, 0755) == 0);
    if (geteuid() != 0) /* its owner may read it */
        return;
    child = fork();
    MUST(child >= 0);
    if (child == 0) {
        struct rapl *rapl;

        failures = 0;
        MUST(setuid(65534) == 0);
        rapl = opened();
        CHECK(rapl_read(rapl, energies, errors, 1) == 0);
        CHECK(errors[0] == -EACCES);
        rapl_close(rapl);
        fflush(NULL);
        _exit(failures != 0);
    }
    MUST(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void nothing_is_left_behind(void)
{
    int before = open_files();

    zone("intel-rapl:0", "package-0\n", "1\n", "2\n");
    zone("intel-rapl:0:0", "core\n", "x\n", "2\n");
    for (int i = 0; i < 1000; i++) {
        struct rapl *rapl = opened();

        CHECK(rapl_read(rapl, energies, errors, RAPL_MAX_ZONES) == 1);
        rapl_close(rapl);
    }
    CHECK(open_files() == before);
}

int main(void)
{
    static void (*const tests[])(void) = {
        two_packages_are_found_in_order_and_read,
        names_tell_package_and_die,
        what_is_no_zone_is_left_alone,
        a_part_without_its_package_stands_alone,
        names_of_another_form_are_left_out,
        what_is_no_number_is_an_error_of_its_zone_alone,
        a_zone_goes_and_comes_back,
        hostile_trees_end,
        zones_are_bounded,
        a_directory_that_cannot_be_read_is_an_error,
        what_only_root_may_read_is_told,
        nothing_is_left_behind,
    };
    const size_t count = sizeof tests / sizeof *tests;

    MUST(mkdtemp(root) != NULL);
    CHECK(lib_rapl_abi() == RAPL_ABI);
    for (size_t i = 0; i < count; i++) {
        tests[i]();
        clear();
    }
    MUST(rmdir(root) == 0);
    printf("lib_rapl: %zu tests, %d failures\n", count, failures);
    return failures != 0;
}
