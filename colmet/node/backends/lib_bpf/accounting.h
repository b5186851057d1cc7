/* What the programs in the kernel (accounting.bpf.c) and the library (job_accounting.c) share. Times in ns of
 * CLOCK_MONOTONIC, memory in pages. A change of a struct or a map changes ACCOUNTING_VERSION. */
#ifndef COLMET_ACCOUNTING_H
#define COLMET_ACCOUNTING_H

#ifndef __bpf__
#include <stdint.h>
typedef uint64_t u64;
typedef uint32_t u32;
typedef int32_t s32;
#endif

#define ACCOUNTING_VERSION 2
#define MAX_HIERARCHIES 4
#define MAX_DEPTH 24      /* levels of cgroups from a task's to its job's directory */
#define MAX_ROOT_DEPTH 4  /* levels from a root to the directories of jobs */
#define MAX_THREADS 1024  /* of a process that moves whole; later ones are settled by the next reading */
#define NAME_SIZE 64
#define PARENT_NAME_SIZE 32

/* Hierarchies of cgroups, by a controller of v1; 0 is none. */
enum hierarchy { HIERARCHY_CPUSET = 1, HIERARCHY_FREEZER, HIERARCHY_MEMORY, HIERARCHY_DEVICES, HIERARCHY_PIDS,
    HIERARCHY_CPUACCT, HIERARCHY_CPU, HIERARCHY_BLKIO, HIERARCHY_V2 };

/* Key of a directory in all maps: its inode number, which two hierarchies may share, and its hierarchy. */
#define HIERARCHY_SHIFT 56

/* Counters of a task, in the kernel's units. */
enum counter { CPU_COUNT, CPU_DELAY, BLKIO_COUNT, BLKIO_DELAY, SWAPIN_COUNT, SWAPIN_DELAY, FREEPAGES_COUNT,
    FREEPAGES_DELAY, UTIME, STIME, RUNTIME, MINOR_FAULTS, MAJOR_FAULTS, RSS_INTEGRAL, VM_INTEGRAL, READ_CHARS,
    WRITTEN_CHARS, READ_CALLS, WRITE_CALLS, READ_BYTES, WRITTEN_BYTES, CANCELLED_BYTES, VOLUNTARY_SWITCHES,
    INVOLUNTARY_SWITCHES, COUNTERS };

/* What a reading finds of live tasks; memory once for each address space. */
enum gauge { TASKS, PROCESSES, VM_SIZE, RSS_FILE, RSS_ANON, RSS_SHMEM, SWAP, HUGETLB, LARGEST_PROCESS,
    LARGEST_MAPPED, GAUGES };

/* Where the directories of jobs are made. */
struct root {
    u32 depth;      /* they are so many levels below; with `oar3` at most */
    u32 oar3;       /* 1: only names with "oar-u" and "-j", and none inside another */
};

/* A job's directory. settled never falls; its sums are snapshot + live where the last reading found a task, else settled. */
struct job {
    u64 reading;    /* the last reading that found a task of it */
    u64 made_ns;    /* when the directory was made, or its first task was seen */
    u64 removed_ns; /* 0: not removed */
    u64 oldest_ns;  /* start of its oldest task */
    u64 forked, entered, left, ended;  /* tasks */
    u64 oom_kills;  /* processes */
    u64 present;    /* entries of `tasks`: with none and removed_ns its sums are final */
    u64 largest_process; /* that ended */
    u64 implausible;     /* waits longer than their task's age, not counted */
    u64 is_added;   /* 1: the agent has entered it, later than its first tasks perhaps */
    u64 root;       /* key of the root that it is below; 0: none, the agent has entered it */
    u64 settled[COUNTERS];  /* of tasks that ended or left */
    u64 snapshot[COUNTERS]; /* settled, as the reading met the job's first task */
    u64 live[COUNTERS];     /* of live tasks, less what is settled of each */
    u64 gauges[GAUGES];
    char name[NAME_SIZE];
    char parent_name[PARENT_NAME_SIZE];
};

/* A live task in a job. */
struct task {
    u64 job;
    u64 start_ns, tgid; /* tell it from an earlier task at this address, whose end was missed */
    u64 base[COUNTERS]; /* what is settled of it, or from before it entered the job */
};

/* All 0, or rows lack something. */
struct losses {
    u64 jobs_full;      /* events of jobs without room in the map */
    u64 tasks_full;     /* tasks without room: counted at their ends alone */
    u64 late_moves;     /* seen by a reading only */
    u64 threads_beyond; /* processes with more than MAX_THREADS moved */
    u64 too_deep;       /* events in cgroups more than MAX_DEPTH levels below a job's */
    u64 missed_ends;    /* tasks whose last event did not come */
};

#endif
