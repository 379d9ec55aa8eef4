#!/bin/bash
# Workers of a comparison as a SLURM array: STORAGE=postgresql://me@head/lab STUDY=big sbatch examples/cluster/slurm.sh
# The password is in ~/.pgpass. A worker that is preempted gives its run back; a new one goes on.
#SBATCH --job-name=superadam
#SBATCH --array=0-7
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --time=08:00:00
#SBATCH --requeue
set -eu
: "${STORAGE:?the database, as in --storage of superadam compare}"
: "${STUDY:?the name of its folder, as in --out}"
export OMP_NUM_THREADS=1
exec "${SUPERADAM:-superadam}" worker "$STORAGE" "$STUDY" --trust \
    ${TASK_FILE:+--task-file "$TASK_FILE"} ${DATA_DIR:+--data-dir "$DATA_DIR"}
