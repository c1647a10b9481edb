#!/usr/bin/env bash
# All reports beside the runs in results/, made from the packed files: experiments/report.sh.
# `make readme` runs it, then fills both pages from what it wrote. results/cifar10-damping/report is not made again: it
# shows how `evenfed choose` chose what the damped runs and results/PLAN.md confirm, by the rule of that day.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
EVENFED=${EVENFED:-.venv/bin/evenfed}

evenfed() { echo "+ evenfed $*" && $EVENFED "$@" > /dev/null; }
report() { evenfed report "$@" --format json; }

for folder in results/cifar10 results/cifar100; do report $folder --paper; done
for folder in results/{,damped-}{shakespeare,stackexchange}; do report $folder; done
for folder in results/cifar10-{again,readings,normalised,own-start,stem}; do report $folder --paper --no-figures; done
for folder in results/cifar10-{split,damped}-?; do report $folder --no-figures; done
for folder in results/cifar10-{normalised,own-start,stem}; do report $folder results/cifar10 --no-figures; done

report results/cifar10 results/cifar10-split-?
report results/cifar10 results/cifar10-split-? --min-test 10 --no-figures
report results/cifar10-damped-?
report results/cifar10-damped-? --min-test 50 --no-figures
for study in results/confirm-* results/chosen-*; do report $study; done
report results/chosen-cifar10 --min-test 10 --no-figures
twenty=$(mktemp -d) # runs of both confirmations, put together; all are there, so nothing is trained
evenfed compare @twenty-cifar10 --device cuda --reuse results/confirm-cifar10 --reuse results/chosen-cifar10 --out "$twenty" --quiet
report "$twenty/twenty-cifar10" --out results/twenty-cifar10/report
report "$twenty/twenty-cifar10" --min-test 10 --no-figures --out results/twenty-cifar10/report-min-test-10
for study in results/{others,guard,choose}-cifar10; do report $study --no-figures; done
evenfed choose results/choose-cifar10/federation-? --margin 0.5 --federations 13,14 --seeds 1 --out "$(mktemp -d)/chosen.toml"
evenfed choose results/choose-cifar100/federation-0 --margin 0.5 --federations 3,4,5 --seeds 1 --out "$(mktemp -d)/chosen.toml"
