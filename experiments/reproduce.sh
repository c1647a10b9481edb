#!/usr/bin/env bash
# All of results/ on one GPU, three seeds of most (readings, own-start and stem have one, confirm two): experiments/reproduce.sh [PART...].
# A part that is finished costs nothing, one that was stopped goes on.
# Before: make setup, and .venv/bin/evenfed data fetch cifar10, and cifar100, and
# data add shakespeare and stackexchange (docs/datasets.md). After: make readme. DRY=1 prints the commands alone.
# MISSING=1 takes the runs that results/ has, and trains only those that are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
RUNS=${RUNS:-runs} DEVICE=${DEVICE:-cuda} EVENFED=${EVENFED:-.venv/bin/evenfed}

PAPERS=fedavg,qffl,afl,gifair,term,propfair,delta_fl,vred,semi_vred

say() { echo "+ $*"; [ -n "${DRY:-}" ] || "$@"; }
evenfed() { say $EVENFED "$@"; }
run() { # PART EXPERIMENT [OPTIONS]: its runs, packed into results/PART; what an earlier part has run is not run again
    local earlier=() folder
    for folder in "$RUNS"/*/*/; do [ ! -d "$folder" ] || earlier+=(--reuse "$folder"); done
    [ -z "${MISSING:-}" ] || [ ! -d "results/$1" ] || earlier+=(--reuse "results/$1")
    evenfed compare "@$2" --device "$DEVICE" --out "$RUNS/$1" ${earlier[@]+"${earlier[@]}"} "${@:3}"
    evenfed pack "$RUNS/$1/$2" "results/$1"
}

part() {
    case $1 in
    cifar10) run cifar10 paper-cifar10 ;;
    cifar10-again) # trained again, not taken from cifar10
        evenfed compare @paper-cifar10 --device "$DEVICE" --out "$RUNS/$1" --algorithms "$PAPERS" --set noise_floor=batches
        evenfed pack "$RUNS/$1/paper-cifar10" "results/$1"
        ;;
    cifar100) run cifar100 paper-cifar100 ;;
    cifar10-split-*) run "$1" vred-cifar10 --set "data.seed=${1##*-}" --set noise_floor=false ;;
    cifar10-damping)
        run cifar10-damping damping-cifar10
        evenfed choose results/cifar10-damping --margin 0.82 --force \
            --out src/evenfed/experiments/damped-cifar10.toml
        ;;
    cifar10-damped-*) run "$1" damped-cifar10 --set "data.seed=${1##*-}" ;;
    damped-shakespeare | damped-stackexchange) run "$1" "$1" ;;
    twenty-cifar10) # every run is one of the two confirmations: experiments/report.sh makes the report
        evenfed compare "@$1" --device "$DEVICE" --out "$RUNS/$1" --reuse results/confirm-cifar10 --reuse results/chosen-cifar10
        ;;
    ch*-cifar10* | confirm-cifar10* | guard-cifar10 | others-cifar10) run "$1" "$1" ;;
    cifar10-readings) run cifar10-readings readings-cifar10 --set noise_floor=false ;;
    cifar10-normalised) run cifar10-normalised vred-cifar10 --set model.normalise=true --set noise_floor=false ;;
    cifar10-own-start) run cifar10-own-start vred-cifar10 --set train.start=own --set noise_floor=false ;;
    cifar10-stem) run cifar10-stem vred-cifar10 --set model.stem=cifar --set noise_floor=false ;;
    digits) # minutes on a CPU; the reports are kept, the runs are not
        evenfed compare @choose-digits --device cpu --workers 2 --out "$RUNS/digits"
        evenfed choose "$RUNS"/digits/choose-digits/federation-? --margin 0.5 --force --out "$RUNS/digits/chosen.toml"
        say cp "$RUNS"/digits/choose-digits/federation-0/report/{choice.md,dials.svg} results/digits/
        evenfed compare @confirm-digits --device cpu --workers 2 --out "$RUNS/digits"
        evenfed report "$RUNS/digits/confirm-digits" --out results/digits/report
        ;;
    digits-*) # the same with a narrower hidden layer: digits-4 has 4 units
        evenfed compare @choose-digits --set "model.hidden=[${1#digits-}]" --device cpu --workers 2 --out "$RUNS/$1"
        evenfed choose "$RUNS/$1"/choose-digits/federation-? --margin 0.5 --seeds 2 --force \
            --federations "$(seq -s, 23 42)" --out "$RUNS/$1/confirm.toml"
        evenfed compare "$RUNS/$1/confirm.toml" --device cpu --workers 2 --out "$RUNS/$1"
        evenfed report "$RUNS/$1/confirm" --out "results/$1/report"
        say cp "$RUNS/$1"/choose-digits/federation-0/report/{choice.md,dials.svg} "results/$1/"
        ;;
    narrow-digits) # with 4 units, FedAvg at other rates too
        evenfed compare @narrow-digits --device cpu --workers 2 --out "$RUNS/$1"
        evenfed report "$RUNS/$1/narrow-digits" --out "results/$1/report"
        ;;
    shakespeare) run shakespeare paper-shakespeare --set train.precision=bf16 ;;
    stackexchange) run stackexchange stackexchange --set train.precision=bf16 ;;
    *) echo "reproduce.sh: unknown part '$1'; there are: ${ALL[*]}" >&2 && exit 2 ;;
    esac
}

ALL=(cifar10 cifar10-again cifar100 cifar10-split-1 cifar10-split-2 cifar10-damping cifar10-damped-0 cifar10-damped-1
    choose-cifar10 choose-cifar100 confirm-cifar10 confirm-cifar100 chosen-cifar10 twenty-cifar10 guard-cifar10 others-cifar10
    cifar10-readings cifar10-normalised cifar10-own-start cifar10-stem
    shakespeare stackexchange damped-shakespeare damped-stackexchange digits digits-2 digits-4 digits-8 digits-16 narrow-digits)
[ $# -gt 0 ] || set -- "${ALL[@]}"
for wanted in "$@"; do part "$wanted"; done
