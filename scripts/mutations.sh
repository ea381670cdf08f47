#!/usr/bin/env bash
# Removes each guard of the commit protocol alone, and lets the simulator look for what then goes wrong. Fails if
# it does not find one of them. The tree itself is not touched.
# usage: scripts/mutations.sh [HISTORIES [NAME ...]]
#        scripts/mutations.sh --guards    only verifies that each guard is where this script expects it
# SILT_MUTATIONS_MODE=--agents plays the histories of agents for all of them, of which they find some.
set -euo pipefail
cd "$(dirname "$0")/.."
histories=${1:-10000}
shift || true
copy=$(mktemp -d)
if [ "$histories" = --guards ]; then
  trap 'rm -rf "$copy"' EXIT
else
  export CARGO_TARGET_DIR=$PWD/target/mutations
  git worktree add --quiet --detach "$copy" HEAD
  trap 'git worktree remove --force "$copy"' EXIT
fi
engine=crates/engine/src repository=crates/repository/src storage=crates/storage/src
missed=()
# Which histories are played.
mode=

# name, file, a Perl substitution that removes the guard
mutate() {
  local name=$1 file=$2 change=$3
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  if [ "$histories" = --guards ]; then
    cp "$file" "$copy/file"
    perl -0pi -e "$change" "$copy/file"
    ! cmp -s "$file" "$copy/file" || missed+=("$name")
    return 0
  fi
  git -C "$copy" checkout --quiet .
  perl -0pi -e "$change" "$copy/$file"
  if git -C "$copy" diff --quiet; then
    echo "$name: the guard is not where it was; mend this script" >&2
    exit 2
  fi
  if ! (cd "$copy" && cargo build --quiet --profile sim -p silt-sim 2>"$copy/errors"); then
    cat "$copy/errors" >&2
    echo "$name: it does not compile" >&2
    exit 2
  fi
  if found=$("$CARGO_TARGET_DIR/sim/silt-sim" run ${SILT_MUTATIONS_MODE-$mode} --histories "$histories" --no-shrink); then
    echo "$name: NOT FOUND in $histories histories"
    missed+=("$name")
  else
    echo "$name: $(head -n 1 <<<"$found" | cut -c1-120)"
  fi
}
wanted=("$@")

# What a reclaim removes was not dropped by a commit first, so who began before can still commit.
mutate fence "$engine/deletion/reclaim.rs" 's/(let replaced = self\.replace_dead\(&plan\.reclaimable, &plan\.drop\)\?;\n\s*)self\.commit\(\)\?;/$1/'
# Numbers that a fence took back are given to containers that are left, which the next backup then adopts.
mutate numbers-behind-orphans "$engine/deletion/plan.rs" 's/head\.next_container = self\.next_container;//'
# A writer that slept through many commits does not look whether its number was free again.
mutate base-check "$repository/heads.rs" 's/if newest >= head\.generation\.saturating_add\(HEADS_KEPT\)/if newest == 0/'
# Chunks of the shared store die without waiting for backups that do not know that they are condemned.
mutate condemning "$engine/shared/sweep.rs" 's/report\.waiting_for = fence\(repository, number, &self\.edit\.head\)\?;//'
# References are not looked at once more after the fence.
mutate second-look "$engine/shared/sweep.rs" 's/self\.edit\.bury\(&condemned\.intersection\(&unreferenced\), report\)/drop(unreferenced); self.edit.bury(&condemned, report)/'
# The list of places is not looked at after a commit, nor by who has been open for long.
mutate list-of-places "$repository/settle.rs" 's/if newest <= objects\.places/if newest < u64::MAX/'
# A place that was away when the list changed gets heads that name what it does not know.
mode=--nodes
mutate settled-lists "$repository/settle.rs" 's/if lacking\.places\.is_empty\(\)/if lacking.places.is_empty() || objects.places > 0/'
mode=
# Names are given twice: every session has the same tag.
mutate tags crates/format/src/ids.rs 's/Self\(random \& !Self::REWRITTEN\)/Self(random \& 2)/; s/Self\(random \| Self::REWRITTEN\)/Self((random \& 2) | Self::REWRITTEN)/'
# What an interrupted backup has left is used wherever it is, durable or not.
mutate settled-orphans "crates/backup/src/adopt.rs" 's/let durable = objects\.storage\.settle\(&key\(&name\)\?\);/let durable = key(&name).map(drop);/'
# Heads are built upon that not all places have, or that a power failure can take away.
mutate settled-heads "$repository/settle.rs" 's/(pub fn settle_head\(.*?\) -> Result<\(\)> \{)/$1\n    if generation > 0 { return Ok(()); }/s'
# What another has committed to a place that is not the first is replaced.
mutate never-replace "$storage/replicated.rs" 's/if there == body\.concat\(\) \{\n\s*return Ok\(\(\)\);\n\s*\}/if there != body.concat() { storage.delete(std::slice::from_ref(key))?; return storage.put_bytes(key, body, mode); } else { return Ok(()); }\n    #[allow(unreachable_code)]/'
# A place counts as complete before it was filled.
mutate filling "$engine/copies/change.rs" 's/list\.filling\.push\(location\.to_owned\(\)\);//'
# A new place can be opened before it knows the others.
mutate list-before-configuration "$engine/copies/change.rs" 's/lists\.iter\(\)\.filter\(\|list\| list\.number > highest\)\.try_for_each\(\|list\| list\.put\(new\)\)\?;//'

# A reclaim removes dead chunks that deltas are applied to.
mutate delta-bases "$engine/deletion/plan.rs" 's/reclaimable = reclaimable\.without\(&self\.bases\(\)\?\);//'
# Chunks that deltas are applied to become links.
mutate linked-bases "$engine/shared/repoint.rs" 's/ && !dead::holds\(bases, slot\)//'
# Chunks that deltas are applied to become deltas.
mutate one-level "$engine/optimize/search.rs" 's/let must_stay = dead::holds\(bases, slot\);/let must_stay = false \& !bases.is_empty();/'

mode=--nodes
# A backup registers containers in a node though a sweep has taken its reservation away.
mutate reservation "crates/backup/src/nodes/registration.rs" 's/if !own\.iter\(\)\.any\(\|it\| it\.first == written\.first\) \{/if false {/'
# Reservations of backups that have ended stay in a node.
mutate ended-writers "$engine/shared/sweep.rs" 's/if running\.len\(\) < self\.head\.store_writers\.len\(\)/if running.len() > self.head.store_writers.len()/'
# Chunks of nodes die without waiting for backups that do not know that they are condemned.
mutate condemning-nodes "$engine/shared/sweep.rs" 's/(report\.waiting_for = fence\(repository, number, &self\.edit\.head\)\?;)/if number < 2 { $1 }/'
# A sweep of a node removes what a backup has written there and not registered yet.
mutate reserved "$engine/deletion/named.rs" 's/ \|\| is_reserved\(name\)//'

# A node is taken out that was empty before the list said that nobody may write to it.
mutate removed-nodes "$engine/copies/nodes.rs" 's/let generation = repository\.verify_removable\(number, is_lost\)\?;/let generation = 0;/'
# A node that is an older copy is used like any other.
mutate older-nodes crates/runs/src/marks.rs 's/let Some\(\(generation, mark\)\) = self\.newest else/let Some((generation, mark)) = self.newest.filter(|_| false) else/'
# Nobody says which head of a node series rely on.
mutate unmarked-nodes crates/backup/src/session.rs 's/silt_runs::marks::raise\(self\.repository, self\.nodes\.numbers\(\)\)\?;//'
# Series rely on a head of a node that the power may take away.
mutate settled-marks crates/runs/src/marks.rs 's/settle_head\(objects, [^;]*;//'
# Whoever moves a node takes what is in the cache for what is in the place.
mutate cached-configurations "$engine/copies/change.rs" 's/self\.emptied\(\), /Ok(None), /'
mode=
# Heads in caches are not compared with the store, though their names can come back with others.
mutate cached-heads "$repository/storage_rules.rs" 's/Keep::Listed\n    \} else if/Keep::Settled\n    } else if/'

if [ ${#missed[@]} -gt 0 ]; then
  echo "not found: ${missed[*]}" >&2
  [ "$histories" != --guards ] || echo "these guards are not where scripts/mutations.sh expects them: mend it" >&2
  exit 1
fi
