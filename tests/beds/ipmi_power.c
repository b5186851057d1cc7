// SPDX-License-Identifier: GPL-3.0-or-later
// Has OpenIPMI's simulated BMC (ipmi_sim) measure power: DCMI's Get Power Reading, and what Dell's BMCs answer to
// `ipmi-oem dell power-monitoring-over-interval`.
//
// loadlib "ipmi_power.so" "FILE": the file holds five numbers, read again at each request: the power now, the lowest,
// the highest and the average, in W, and 1 where power is measured, 0 where that is switched off.

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <OpenIPMI/serv.h>
#include <OpenIPMI/mcserv.h>

enum {
    DCMI_GROUP = 0xdc,          // of the network function "group extension", in the first byte
    DCMI_GET_POWER_READING = 0x02,
    DELL_NETFN = 0x30,
    DELL_POWER_OVER_INTERVAL = 0xcc,
    CC_OK = 0x00,
    CC_UNKNOWN_COMMAND = 0xc1,
    CC_NOT_NOW = 0xd5,          // not supported in the present state
};

struct reading {
    unsigned int now, lowest, highest, average, is_on;
};

static char file_name[4096];

static int take_reading(struct reading *r)
{
    FILE *file = fopen(file_name, "re");
    if (!file)
        return -1;
    int count = fscanf(file, "%u %u %u %u %u", &r->now, &r->lowest, &r->highest, &r->average, &r->is_on);
    fclose(file);
    return count == 5 ? 0 : -1;
}

// Little-endian; where the next value goes.
static unsigned char *put(unsigned char *to, uint32_t value, int bytes)
{
    for (; bytes; bytes--, value >>= 8)
        *to++ = value & 0xff;
    return to;
}

static void answer_dcmi(lmc_data_t *mc, msg_t *msg, unsigned char *reply, unsigned int *length, void *unused)
{
    struct reading r;
    (void)mc, (void)unused;
    *length = 1;
    if (msg->cmd != DCMI_GET_POWER_READING) {
        reply[0] = CC_UNKNOWN_COMMAND;
        return;
    }
    if (take_reading(&r)) {
        reply[0] = CC_NOT_NOW;
        return;
    }
    unsigned char *end = put(reply, CC_OK, 1);
    end = put(end, DCMI_GROUP, 1);
    end = put(end, r.now, 2);
    end = put(end, r.lowest, 2);
    end = put(end, r.highest, 2);
    end = put(end, r.average, 2);
    end = put(end, (uint32_t)time(NULL), 4);
    end = put(end, 5000, 4);    // ms that the statistics are about
    end = put(end, r.is_on ? 0x40 : 0, 1);
    *length = (unsigned int)(end - reply);
}

static void answer_dell(lmc_data_t *mc, msg_t *msg, unsigned char *reply, unsigned int *length, void *unused)
{
    struct reading r;
    (void)mc, (void)msg, (void)unused;
    *length = 1;
    if (take_reading(&r) || !r.is_on) {
        reply[0] = CC_NOT_NOW;
        return;
    }
    unsigned char *end = put(reply, CC_OK, 1);
    end = put(end, r.average, 2);
    end = put(end, r.lowest, 2);
    end = put(end, r.highest, 2);
    end = put(end, 0, 4);
    end = put(end, 0, 1);
    *length = (unsigned int)(end - reply);
}

int ipmi_sim_module_print_version(sys_data_t *sys, char *options)
{
    (void)sys, (void)options;
    return 0;
}

int ipmi_sim_module_init(sys_data_t *sys, const char *options)
{
    (void)sys;
    if (!options || snprintf(file_name, sizeof file_name, "%s", options) >= (int)sizeof file_name)
        return 1;
    ipmi_emu_register_group_extension_handler(DCMI_GROUP, answer_dcmi, NULL);
    return ipmi_emu_register_cmd_handler(DELL_NETFN, DELL_POWER_OVER_INTERVAL, answer_dell, NULL);
}
