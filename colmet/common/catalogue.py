"""The types of the columns of all tables that Colmet's nodes send, the older ones too: one text for each table.

``make docs`` writes this module from the schemas. `colmet.common.declared` reads it.
"""

TABLES = {
    "RAPLstats_default": """
i8: counter_1 counter_10 counter_11 counter_12 counter_13 counter_14 counter_15 counter_16 counter_17 counter_18
counter_19 counter_2 counter_20 counter_21 counter_22 counter_23 counter_24 counter_3 counter_4 counter_5 counter_6
counter_7 counter_8 counter_9
""",
    "agent_default": """
S32: backend
i8: answers_lost batches_acknowledged batches_dropped batches_sent batches_waiting commands commands_killed cpu_time
cpus delays_implausible discovery_failures exit_overflows exit_records exit_records_lost exit_records_on
exits_by_fork exits_by_parent exits_known exits_other failures file_failures fork_events fork_events_on
fork_overflows gpus_lost groups_left_out is_on job_conflicts jobs jobs_ended jobs_started jobs_unmapped jobs_unread
jobs_without_rows kept_files late left_out mapping_failures open_files overattributed overruns part_failures
perf_fd_shortages perf_files_left_out perf_group_failures perf_jobs_uncounted perf_read_failures perf_tasks_moved
perf_yields placement_failures programs_cpu_time reads_left_out reads_unanswered reads_waiting rows rss
state_failures ticks wall_time watch_overflows zone_resets
""",
    "cgroup_default": """
S64: user
i8: cpu_pressure_full cpu_pressure_some cpu_system cpu_unattributed cpu_usage cpu_user cpus_allocated
io_pressure_full io_pressure_some io_read_bytes io_read_ops io_write_bytes io_write_ops memory_active_anon
memory_active_file memory_anon memory_anon_thp memory_current memory_dirty memory_file memory_inactive_anon
memory_inactive_file memory_kernel memory_limit memory_limit_hits memory_mapped_file memory_oom_kills memory_peak
memory_pgfault memory_pgmajfault memory_pgpgin memory_pgpgout memory_pressure_full memory_pressure_some
memory_refault_anon memory_refault_file memory_shmem memory_swap memory_swap_limit memory_unevictable
memory_writeback nr_periods nr_throttled pids_current pids_limit pids_limit_hits pids_peak throttled_time
""",
    "completeness_default": """
S64: table
i8: acknowledged dropped due duplicate epoch failed is_last late period rows rows_now sent taken
""",
    "cpu_default": """
i8: nr_periods nr_throttled throttled_time
""",
    "facility_disks_default": """
S128: device login_node
S255: mount
S64: cluster
f8: utilization
i8: free total used
""",
    "facility_hosts_default": """
S128: login_node
S64: cluster
f8: load network_interval
i8: memory_available memory_total network_received network_sent
""",
    "facility_jobs_default": """
S128: user
S16: state
S64: cluster id
i8: runtime
""",
    "facility_jupyter_default": """
S32: kind
S64: cluster
i8: users
""",
    "facility_logins_default": """
S128: login_node
S64: cluster
i8: users
""",
    "facility_queues_default": """
S128: queue
S64: cluster
i8: allocated_cores allocated_mem held idle running
""",
    "facility_users_default": """
S128: login_node user
S32: kind
S64: cluster
i8: times
""",
    "gaps_default": """
S16: why
S64: table
i8: epoch first first_batch last last_batch samples
""",
    "infinibandports_default": """
S32: link_layer physical_state state
S48: rate
S80: port
i8: VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors
multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors
port_rcv_packets port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors
port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets
unicast_xmit_packets
""",
    "infinibandstats_default": """
i8: portRcvData portRcvPkts portXmitData portXmitPkts
""",
    "ipmipowerstats_default": """
S8: source
i8: average_power_consumption current_power maximum_power minimum_power
""",
    "jobprocstats_default": """
i8: RssAnon RssShmem VmRSS VmSize cancelled_write_bytes memory_used processes rchar read_bytes syscr syscw tasks
wchar write_bytes
""",
    "lustremounts_default": """
S255: mount_point
S32: fsname
S64: mount
i8: alloc_inode bytes_read bytes_write close create dirty_pages_hits dirty_pages_misses fallocate flock fsync
getattr getxattr getxattr_hits inode_permission ioctl link listxattr mkdir mknod mmap nb_read nb_write open osc_read
osc_write page_fault page_mkwrite readdir removexattr rename rmdir seek setattr setxattr statfs symlink truncate
unlink
""",
    "lustrestats_default": """
i8: lustre_bytes_read lustre_bytes_write lustre_nb_read lustre_nb_write
""",
    "mapping_default": """
S128: name
S32: counter unit
S64: metric zone
""",
    "memory_default": """
i8: active_anon active_file cache dirty hierarchical_memory_limit hierarchical_memsw_limit inactive_anon
inactive_file mapped_file pgfault pgmajfault pgpgin pgpgout rss rss_huge shmem swap total_active_anon
total_active_file total_cache total_dirty total_inactive_anon total_inactive_file total_mapped_file total_pgfault
total_pgmajfault total_pgpgin total_pgpgout total_rss total_rss_huge total_shmem total_swap total_unevictable
total_writeback unevictable writeback
""",
    "nvidiagpus_default": """
S256: jobs
S32: pci
S80: parent uuid
S96: name
f4: power power_limit
i8: clock_event_reasons clock_graphics clock_memory clock_sm ecc_corrected_aggregate ecc_corrected_volatile
ecc_uncorrected_aggregate ecc_uncorrected_volatile energy fan index memory_free memory_reserved memory_total
memory_used pcie_replays pcie_rx pcie_tx performance_state processes processes_no_job temperature temperature_memory
utilization_gpu utilization_memory
""",
    "nvidiajobs_default": """
S16: held_by
S80: uuid
f4: utilization_sm
i8: held memory_used processes
""",
    "nvidiastats_default": """
i8: gpus gpus_idle gpus_shared memory-free memory-total memory-used power temperature utilization-gpu
utilization-memory
""",
    "perfhw_default": """
i8: alignment_faults bpf_output branch_instructions branch_misses bus_cycles cache_bpu cache_dtlb cache_itlb
cache_l1d cache_ll cache_misses cache_node cache_op_prefetch cache_op_read cache_references cache_result_access
context_switches cpu_clock cpu_cycles cpu_migrations dummy emulation_faults instructions page_faults page_faults_maj
page_faults_min ref_cpu_cycles task_clock
""",
    "perfhwstats_default": """
f8: scale_1 scale_2 scale_3 scale_4 scale_5
i8: counter_1 counter_2 counter_3 counter_4 counter_5
""",
    "procstats_default": """
f4: loadavg_15min loadavg_1min loadavg_5min loadavg_runnable loadavg_total_threads
i8: meminfo_active meminfo_anonhugepages meminfo_anonpages meminfo_bounce meminfo_buffers meminfo_cached
meminfo_commitlimit meminfo_committed_as meminfo_directmap2m meminfo_directmap4k meminfo_dirty
meminfo_hugepages_free meminfo_hugepages_rsvd meminfo_hugepages_surp meminfo_hugepages_total meminfo_hugepagesize
meminfo_inactive meminfo_kernelstack meminfo_mapped meminfo_memfree meminfo_memtotal meminfo_mlocked
meminfo_nfs_unstable meminfo_pagetables meminfo_shmem meminfo_slab meminfo_sreclaimable meminfo_sunreclaim
meminfo_swapcached meminfo_swapfree meminfo_swaptotal meminfo_unevictable meminfo_vmallocchunk meminfo_vmalloctotal
meminfo_vmallocused meminfo_writeback meminfo_writebacktmp stat_cpu_guest stat_cpu_guest_nice stat_cpu_idle
stat_cpu_iowait stat_cpu_irq stat_cpu_nice stat_cpu_softirq stat_cpu_steal stat_cpu_system stat_cpu_user stat_cpus
stat_ctxt stat_intr stat_processes stat_procs_blocked uptime_idle uptime_total vmstat_pgfault vmstat_pgmajfault
vmstat_pgpgin vmstat_pgpgout vmstat_pswpin vmstat_pswpout
""",
    "raplzones_default": """
S32: name package
S64: zone
f8: power
i8: energy max_energy_range
""",
    "taskstats_default": """
i8: ac_btime ac_etime ac_majflt ac_minflt ac_stime ac_stimescaled ac_utime ac_utimescaled blkio_count
blkio_delay_total cancelled_write_bytes coremem cpu_count cpu_delay_total cpu_run_real_total cpu_run_virtual_total
cpu_scaled_run_real_total cpu_total freepages_count freepages_delay_total nivcsw nvcsw read_bytes read_char
read_syscalls swapin_count swapin_delay_total virtmem write_bytes write_char write_syscalls
""",
    "temperatures_default": """
S64: sensor
S8: source
f8: critical temperature
""",
    "temperaturestats_default": """
i8: counter_1 counter_2 counter_3 counter_4 counter_5 counter_6
""",
}
