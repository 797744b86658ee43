# A Slurm cluster of two nodes on this machine, in one folder. Sourced; needs root, slurm-wlm and munge.

# slurm_start FOLDER: starts munged, slurmctld and two slurmd, and sets SLURM_CONF.
slurm_start() {
  local d=$1 host port
  host=$(hostname)
  port=$((17000 + $$ % 3000 * 3)) # of its own: a test that was killed leaves its cluster behind
  mkdir -p "$d/state" "$d/spool-n1" "$d/spool-n2"
  cat >"$d/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=$d/munge.sock,cred_expire=5
SlurmctldPort=$port
StateSaveLocation=$d/state
SlurmdSpoolDir=$d/spool-%n
SlurmctldPidFile=$d/ctld.pid
SlurmdPidFile=$d/slurmd-%n.pid
SlurmctldLogFile=$d/ctld.log
SlurmdLogFile=$d/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
PropagateResourceLimits=NONE
NodeName=n[1-2] NodeAddr=127.0.0.1 NodeHostname=$host Port=[$((port + 1))-$((port + 2))] CPUs=2 RealMemory=1000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100
END
  dd if=/dev/urandom of="$d/munge.key" bs=1024 count=1 status=none
  chmod 400 "$d/munge.key"
  chmod 755 "$d"
  export SLURM_CONF=$d/slurm.conf
  munged --force -S "$d/munge.sock" --key-file="$d/munge.key" --pid-file="$d/munged.pid" --log-file="$d/munged.log" \
    --seed-file="$d/munge.seed"
  slurmctld -c
  slurmd -N n1
  slurmd -N n2
  local i
  for i in $(seq 100); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && return 0
    sleep 0.1
  done
  echo "the Slurm nodes did not come up"
  cat "$d"/*.log
  return 1
}

# slurm_stop FOLDER: ends jobs, and what slurm_start started, by pid.
slurm_stop() {
  local d=$1 pid i
  export SLURM_CONF=$d/slurm.conf
  scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
  scancel --user="$(id -un)" 2>/dev/null || true
  for i in $(seq 50); do
    [ -z "$(squeue -h 2>/dev/null)" ] && break
    sleep 0.1
  done
  for pid in "$d"/slurmd-n1.pid "$d"/slurmd-n2.pid "$d"/ctld.pid "$d"/munged.pid; do
    [ -s "$pid" ] && kill "$(cat "$pid")" 2>/dev/null || true
  done
  sleep 0.5
}
