/* The energy counters of RAPL, as the kernel's powercap driver shows them in sysfs. */

#ifndef COLMET_RAPL_H
#define COLMET_RAPL_H

#include <stddef.h>
#include <stdint.h>

/* Changes with every change of what is declared here. */
#define RAPL_ABI 1

#define RAPL_MAX_ZONES 256 /* eight packages of two dies have 64 */
#define RAPL_NAME_BYTES 64

/* One zone, in the order of the numbers in its id. */
struct rapl_zone {
    char id[32];                /* of its directory: "intel-rapl:0:1" */
    char name[RAPL_NAME_BYTES]; /* "package-0", "core", "uncore", "dram", "psys" */
    int32_t parent;             /* index of the zone that it is a part of, or -1 */
    int32_t package;            /* number of the package that it is in, or -1 */
    int32_t die;                /* number of the die that it is in, or -1 where packages are not told apart further */
    uint64_t max_energy_range_uj; /* where its counter begins again at 0; 0 where that is not known */
};

struct rapl;

#define RAPL_PUBLIC __attribute__((visibility("default")))

/* RAPL_ABI of the library. */
RAPL_PUBLIC int lib_rapl_abi(void);

/* Find all zones of the control type intel-rapl, which AMD's processors have, too.
 *
 * root: the powercap class, "/sys/class/powercap".
 * made: where the handle goes; rapl_close gives it back.
 *
 * 0, or -errno where the directory cannot be read or memory is short. No zone at all is no error. */
RAPL_PUBLIC int rapl_open(const char *root, struct rapl **made);

/* How many zones there are. */
RAPL_PUBLIC size_t rapl_count(const struct rapl *rapl);

/* How many were left out: beyond RAPL_MAX_ZONES, or without a name that can be read. */
RAPL_PUBLIC size_t rapl_left_out(const struct rapl *rapl);

/* What a zone is: 0, or -EINVAL where there is no such zone. */
RAPL_PUBLIC int rapl_describe(const struct rapl *rapl, size_t index, struct rapl_zone *zone);

/* Read the counters of all zones.
 *
 * energies_uj: of each zone, 0 where it could not be read.
 * errors: of each zone: 0, or -errno. -EACCES: for root alone, since Linux 5.10. -ENODEV or -ENOENT: the zone has gone.
 *         -EPROTO: no number from 0 to INT64_MAX.
 * room: for how many zones there is room in both.
 *
 * How many zones were read without an error, or -EINVAL where there is not room for all. */
RAPL_PUBLIC int rapl_read(struct rapl *rapl, uint64_t *energies_uj, int32_t *errors, size_t room);

/* Give everything back; NULL is nothing. */
RAPL_PUBLIC void rapl_close(struct rapl *rapl);

#endif
