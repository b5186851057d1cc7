/* See rapl.h. All access goes through a descriptor of the class's directory. Its listing is flat: links in it are not
 * walked. */

#define _GNU_SOURCE

#include "rapl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTROL_TYPE "intel-rapl:" /* intel-rapl-mmio: has the same packages again */
#define MAX_NUMBER 99999           /* in ids and names */
#define NUMBER_BYTES 24            /* of INT64_MAX, with a newline, and more */

struct counter {
    struct rapl_zone zone;
    int32_t top, sub; /* numbers of its id; sub is -1 for a zone that is not part of another */
    int fd;           /* of energy_uj, -1 while it is not open */
};

struct rapl {
    int directory;
    size_t count, left_out;
    struct counter counters[RAPL_MAX_ZONES];
};

int lib_rapl_abi(void)
{
    return RAPL_ABI;
}

/* Parse a number without a sign or leading zeros, at most MAX_NUMBER; return its end, NULL without a number. */
static const char *small_number(const char *text, int32_t *number)
{
    int32_t value = 0;
    const char *at = text;

    for (; *at >= '0' && *at <= '9'; at++) {
        value = value * 10 + (*at - '0');
        if (value > MAX_NUMBER)
            return NULL;
    }
    if (at == text || (*text == '0' && at > text + 1))
        return NULL;
    *number = value;
    return at;
}

/* Parse "intel-rapl:0" or "intel-rapl:0:1". */
static bool parse_id(const char *text, int32_t *top, int32_t *sub)
{
    const size_t length = strlen(CONTROL_TYPE);

    *sub = -1;
    if (strncmp(text, CONTROL_TYPE, length) != 0)
        return false;
    text = small_number(text + length, top);
    if (text != NULL && *text == ':')
        text = small_number(text + 1, sub);
    return text != NULL && *text == '\0';
}

/* Parse "package-0" or "package-0-die-1"; -1 for missing parts. */
static void parse_name(struct rapl_zone *zone)
{
    static const char package[] = "package-", die[] = "-die-";
    int32_t number, part;
    const char *at = zone->name;

    zone->package = zone->die = -1;
    if (strncmp(at, package, strlen(package)) != 0)
        return;
    at = small_number(at + strlen(package), &number);
    if (at == NULL)
        return;
    if (*at == '\0') {
        zone->package = number;
    } else if (strncmp(at, die, strlen(die)) == 0) {
        at = small_number(at + strlen(die), &part);
        if (at != NULL && *at == '\0') {
            zone->package = number;
            zone->die = part;
        }
    }
}

static int open_in(const struct rapl *rapl, const char *id, const char *file)
{
    char path[sizeof(((struct rapl_zone *)0)->id) + 32];
    int fd, length = snprintf(path, sizeof path, "%s/%s", id, file);

    if (length < 0 || (size_t)length >= sizeof path)
        return -ENAMETOOLONG;
    /* other files than those of sysfs must not block */
    fd = openat(rapl->directory, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return fd < 0 ? -errno : fd;
}

/* Read a whole file as a string, without a newline at its end; return its length, or -errno. */
static ssize_t read_text(int fd, char *text, size_t size)
{
    ssize_t length;

    do
        length = pread(fd, text, size, 0);
    while (length < 0 && errno == EINTR);
    if (length < 0)
        return -errno;
    if (length > 0 && text[length - 1] == '\n')
        length--;
    else if ((size_t)length == size)
        return -EPROTO; /* it may be longer */
    text[length] = '\0';
    return memchr(text, '\0', (size_t)length) != NULL ? -EPROTO : length;
}

static int read_number(int fd, uint64_t *number)
{
    char text[NUMBER_BYTES];
    uint64_t value = 0;
    ssize_t length = read_text(fd, text, sizeof text);

    if (length < 0)
        return (int)length;
    if (length == 0)
        return -EPROTO;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9')
            return -EPROTO;
        if (value > (INT64_MAX - (uint64_t)(*at - '0')) / 10)
            return -EPROTO;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    *number = value;
    return 0;
}

/* Accept only characters of the kernel's names: names become labels of rows and parts of files. */
static int read_name(int fd, char *name, size_t size)
{
    ssize_t length = read_text(fd, name, size);

    if (length < 0)
        return (int)length;
    for (const char *at = name; *at != '\0'; at++)
        if (!((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9') || *at == '-' ||
              *at == '_' || *at == '.'))
            return -EPROTO;
    return length == 0 ? -EPROTO : 0;
}

/* Fill in a zone from its files. */
static int describe(const struct rapl *rapl, struct rapl_zone *zone)
{
    int rc, fd = open_in(rapl, zone->id, "name");

    if (fd < 0)
        return fd;
    rc = read_name(fd, zone->name, sizeof zone->name);
    close(fd);
    if (rc < 0)
        return rc;
    parse_name(zone);

    zone->max_energy_range_uj = 0;
    fd = open_in(rapl, zone->id, "max_energy_range_uj");
    if (fd >= 0) {
        (void)read_number(fd, &zone->max_energy_range_uj);
        close(fd);
    }
    return 0;
}

static int by_id(const void *one, const void *other)
{
    const struct counter *a = one, *b = other;

    return a->top != b->top ? (a->top > b->top) - (a->top < b->top) : (a->sub > b->sub) - (a->sub < b->sub);
}

/* Find the parents of zones: sorted, parts follow their package. */
static void find_parents(struct rapl *rapl)
{
    int32_t parent = -1;

    for (size_t i = 0; i < rapl->count; i++) {
        struct counter *counter = &rapl->counters[i];

        counter->zone.parent = -1;
        if (counter->sub < 0) {
            parent = (int32_t)i;
        } else if (parent >= 0 && rapl->counters[parent].top == counter->top) {
            counter->zone.parent = parent;
            counter->zone.package = rapl->counters[parent].zone.package;
            counter->zone.die = rapl->counters[parent].zone.die;
        }
    }
}

/* Return the errno of an incomplete listing, else 0. */
static int list(struct rapl *rapl, DIR *listing)
{
    const struct dirent *entry;

    while (errno = 0, (entry = readdir(listing)) != NULL) {
        struct counter found = {.fd = -1};
        size_t length = strlen(entry->d_name);

        if (!parse_id(entry->d_name, &found.top, &found.sub))
            continue;
        if (rapl->count == RAPL_MAX_ZONES || length >= sizeof found.zone.id) {
            rapl->left_out++;
            continue;
        }
        memcpy(found.zone.id, entry->d_name, length + 1);
        if (describe(rapl, &found.zone) < 0) {
            rapl->left_out++;
            continue;
        }
        rapl->counters[rapl->count++] = found;
    }
    return errno;
}

int rapl_open(const char *root, struct rapl **made)
{
    struct rapl *rapl = NULL;
    DIR *listing = NULL;
    int rc, fd = -1;

    rapl = calloc(1, sizeof *rapl);
    if (rapl == NULL)
        return -ENOMEM;
    rapl->directory = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (rapl->directory < 0)
        goto fail;
    fd = openat(rapl->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        goto fail;
    listing = fdopendir(fd);
    if (listing == NULL)
        goto fail;
    fd = -1;
    errno = list(rapl, listing);
    if (errno != 0)
        goto fail;
    closedir(listing);
    qsort(rapl->counters, rapl->count, sizeof *rapl->counters, by_id);
    find_parents(rapl);
    *made = rapl;
    return 0;

fail:
    rc = -errno;
    if (listing != NULL)
        closedir(listing);
    if (fd >= 0)
        close(fd);
    rapl_close(rapl);
    return rc;
}

size_t rapl_count(const struct rapl *rapl)
{
    return rapl->count;
}

size_t rapl_left_out(const struct rapl *rapl)
{
    return rapl->left_out;
}

int rapl_describe(const struct rapl *rapl, size_t index, struct rapl_zone *zone)
{
    if (index >= rapl->count)
        return -EINVAL;
    *zone = rapl->counters[index].zone;
    return 0;
}

static int read_counter(const struct rapl *rapl, struct counter *counter, uint64_t *energy_uj)
{
    int rc;

    if (counter->fd < 0) {
        rc = open_in(rapl, counter->zone.id, "energy_uj");
        if (rc < 0)
            return rc;
        counter->fd = rc;
    }
    rc = read_number(counter->fd, energy_uj);
    if (rc < 0) { /* a returning zone has another file */
        close(counter->fd);
        counter->fd = -1;
    }
    return rc;
}

int rapl_read(struct rapl *rapl, uint64_t *energies_uj, int32_t *errors, size_t room)
{
    int whole = 0;

    if (room < rapl->count)
        return -EINVAL;
    for (size_t i = 0; i < rapl->count; i++) {
        energies_uj[i] = 0;
        errors[i] = read_counter(rapl, &rapl->counters[i], &energies_uj[i]);
        whole += errors[i] == 0;
    }
    return whole;
}

void rapl_close(struct rapl *rapl)
{
    if (rapl == NULL)
        return;
    for (size_t i = 0; i < rapl->count; i++)
        if (rapl->counters[i].fd >= 0)
            close(rapl->counters[i].fd);
    if (rapl->directory >= 0)
        close(rapl->directory);
    free(rapl);
}
