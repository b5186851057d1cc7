#!/bin/bash
# A simulated BMC (OpenIPMI's ipmi_sim) that the real freeipmi and ipmitool ask over the loopback.
#
#   PORT=9623 ipmi.sh up      install what is missing, start; prints the directory of all its state
#   ipmi.sh logs              the ends of all logs
#   ipmi.sh down              stop it, leave nothing but the packages
#
# All but `up` find that directory in BED: export BED=$(PORT=9623 ipmi.sh up). In it are:
#   power            what DCMI and Dell's commands say: now, lowest, highest, average (W), and 1 while that is measured
#   sensor           half of what the sensor "Pwr Consumption" says, at most 255
#   freeipmi.conf    for --config-file of freeipmi's tools
#   password         for -f of ipmitool
#   ipmi_sim.pid     to stop and continue it
# VENDOR=0x0002a2 is the number of its manufacturer (Dell); MODULE=0 leaves DCMI and Dell's commands out.

source "$(dirname "$0")/common.sh"
packages=(openipmi freeipmi-tools ipmitool)

sensor() { # NUMBER NAME TYPE UNIT FACTOR ENTITY
    cat <<S
sdr type 1
    sensor_owner_id 0x20
    sensor_owner_lun 0
    channel_number 0
    sensor_number $1
    entity_id $6
    entity_instance 1
    sensor_type $3
    init_scanning true
    init_sensor_type true
    default_sensor_scan_on true
    event_reading_type_code 1
    analog_data_format unsigned
    rate_unit none
    modifier_unit none
    percentage false
    base_unit $4
    modifier_unit_code unspecified
    linearization linear
    m $5
    tolerance 0
    b 0
    accuracy 1
    accuracy_exp 0
    sensor_direction input
    r_exp 0
    b_exp 0
    sensor_maximum 255
    sensor_minimum 0
    id_string "$2"
endsdr

S
}

configure() {
    local vendor=${VENDOR:-0x0002a2} none=000000000000000
    echo "213 180 260 207 1" >power
    echo 120 >sensor
    echo 45 >temperature
    { sensor 1 Ambient Temperature degrees_C 1 system_board; sensor 2 "Pwr Consumption" Current Watts 2 power_supply; } >sdrs
    mkdir -p state/ipmi_sim/bmc
    sdrcomp -o state/ipmi_sim/bmc/sdr.20.main sdrs >sdrcomp.log 2>&1 || die "no sensors"
    cat >lan.conf <<C
name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 $PORT
    priv_limit admin
    allowed_auths_admin md5
    guid c01437c01437c01437c01437c0143700
  endlan
  user 1 false "" "" user 10 none
  user 2 true "colmet" "bed-secret" admin 10 md5
C
    if [[ ${MODULE:-1} = 1 ]]; then
        cc -std=c11 -Wall -Wextra -Werror -O1 -shared -fPIC -D_GNU_SOURCE -o ipmi_power.so "$here/ipmi_power.c" >cc.log 2>&1 ||
            die "the module does not compile"
        echo "loadlib \"$BED/ipmi_power.so\" \"$BED/power\"" >>lan.conf
    fi
    cat >sim.emu <<C
mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 1 0 0x9f $vendor 0x0001 persist_sdr
sensor_add 0x20 0 1 0x01 0x01 poll 200 file "$BED/temperature"
sensor_set_event_support 0x20 0 1 enable scanning per-state $none $none $none $none
sensor_add 0x20 0 2 0x03 0x01 poll 200 file "$BED/sensor"
sensor_set_event_support 0x20 0 2 enable scanning per-state $none $none $none $none
mc_enable 0x20
C
    (umask 077; echo bed-secret >password)
    (
        umask 077
        # ipmi_sim answers with the privilege of the request, and freeipmi asks for none without the workaround
        printf '%s\n' "username colmet" "password bed-secret" "driver-type LAN_2_0" "privilege-level ADMIN" \
            "workaround-flags opensesspriv" >freeipmi.conf
    )
}

answers() { bmc-info -h "127.0.0.1:$PORT" --config-file "$BED/freeipmi.conf" --get-device-id; }

up() {
    [[ -n ${PORT:-} ]] || usage
    [[ ${MODULE:-1} != 1 ]] || packages+=(gcc libc6-dev libopenipmi-dev)
    install_packages "${packages[@]}"
    export BED=${BED:-$(mktemp -d "/tmp/$bed-bed.XXXXXX")}
    [[ -z $(ls -A "$BED") ]] || die "BED=$BED is not empty"
    touch "$BED/bed" # it is ours, and may be removed
    cd "$BED"
    echo "$PORT" >port
    trap failed EXIT
    trap 'exit 130' INT TERM
    configure
    setsid ipmi_sim -c lan.conf -f sim.emu -s state -n </dev/null >ipmi_sim.log 2>&1 &
    echo $! >ipmi_sim.pid
    until_true 10 answers || die "ipmi_sim does not answer on UDP port $PORT"
    trap - EXIT INT TERM
    say "up after $SECONDS s"
    echo "$BED"
}
failed() {
    say "did not come up; the ends of its logs:"
    logs >&2
    down
}

down() {
    local pid
    # what freeipmi keeps of the sensors, whatever HOME is
    ipmi-sensors -h "127.0.0.1:$(<"$BED/port")" --config-file "$BED/freeipmi.conf" --quiet-cache --flush-cache \
        >/dev/null 2>&1 || true
    rmdir ~/.freeipmi/sdr-cache ~/.freeipmi 2>/dev/null || true
    pid=$(cat "$BED/ipmi_sim.pid" 2>/dev/null) || true
    if [[ -n $pid && $(readlink "/proc/$pid/exe") == */ipmi_sim ]]; then
        kill -9 "$pid" # also where it is stopped
        until_true 10 test ! -e "/proc/$pid/exe" || say "ipmi_sim is left"
    fi
    rm -rf "$BED"
}

main "$@"
