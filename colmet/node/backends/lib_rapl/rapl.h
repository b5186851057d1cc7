/* The energy counters of RAPL in sysfs, by the kernel's powercap driver. */

#ifndef COLMET_RAPL_H
#define COLMET_RAPL_H

#include <stddef.h>
#include <stdint.h>

/* Changes with every change of this interface. */
#define RAPL_ABI 1

#define RAPL_MAX_ZONES 256 /* eight packages of two dies have 64 */
#define RAPL_NAME_BYTES 64

/* One zone, in the order of the numbers in its id. */
struct rapl_zone {
    char id[32];                /* of its directory: "intel-rapl:0:1" */
    char name[RAPL_NAME_BYTES]; /* "package-0", "core", "uncore", "dram", "psys" */
    int32_t parent;             /* index of the enclosing zone, or -1 */
    int32_t package;            /* number of its package, or -1 */
    int32_t die;                /* number of its die, or -1 without a number */
    uint64_t max_energy_range_uj; /* its counter wraps to 0 beyond this value; 0 if unknown */
};

struct rapl;

#define RAPL_PUBLIC __attribute__((visibility("default")))

/* Return the library's RAPL_ABI. */
RAPL_PUBLIC int lib_rapl_abi(void);

/* Find all zones of the control type intel-rapl, also used by AMD's processors.
 *
 * root: the powercap class, "/sys/class/powercap".
 * made: the handle; rapl_close frees it.
 *
 * Returns 0, or -errno if the directory is unreadable or memory is short. Having no zone is not an error. */
RAPL_PUBLIC int rapl_open(const char *root, struct rapl **made);

/* Return the number of zones. */
RAPL_PUBLIC size_t rapl_count(const struct rapl *rapl);

/* Return the number of skipped zones: beyond RAPL_MAX_ZONES, or without a readable name. */
RAPL_PUBLIC size_t rapl_left_out(const struct rapl *rapl);

/* Describe a zone; return 0, or -EINVAL if there is no such zone. */
RAPL_PUBLIC int rapl_describe(const struct rapl *rapl, size_t index, struct rapl_zone *zone);

/* Read the counters of all zones.
 *
 * energies_uj: of each zone, 0 if unreadable.
 * errors: of each zone: 0, or -errno. -EACCES: readable by root only, since Linux 5.10. -ENODEV or -ENOENT: the zone is
 *         gone. -EPROTO: not a number from 0 to INT64_MAX.
 * room: number of elements in both arrays.
 *
 * Returns the number of zones read without an error, or -EINVAL if an array is too small. */
RAPL_PUBLIC int rapl_read(struct rapl *rapl, uint64_t *energies_uj, int32_t *errors, size_t room);

/* Free a handle; NULL is allowed. */
RAPL_PUBLIC void rapl_close(struct rapl *rapl);

#endif
