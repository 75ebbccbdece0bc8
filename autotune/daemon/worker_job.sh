#!/bin/sh
#SBATCH --job-name=autotune-$name
#SBATCH --array=0-$last
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --signal=B:TERM@$notice_s
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=$output
# Workers of autotune $version. Each task measures on a node of its own. A task that is preempted
# gives its trial back, and joins the study again when Slurm starts it anew.
$entering
exec $words --seed "$$(($seed + SLURM_ARRAY_TASK_ID))"
