// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

/// Deliberate bugs of the protocol, for the simulator to find (mutations.cmake plants them into a
/// copy of backend/runtime/protocol; the product never sees them). One is active at a time.
#define BULKHEAD_MUTATION_LIST(X)            \
    X(accept_older_term, 100)                \
    X(act_on_any_abort, 50)                  \
    X(apply_before_commit, 5)                \
    X(apply_without_the_sum, 200)            \
    X(replay_over_a_gap, 5)                  \
    X(vote_for_any_exchange, 350)            \
    X(stay_for_ever_as_an_orphan, 200)       \
    X(leave_at_once_as_an_orphan, 50)        \
    X(commit_on_majority, 5)                 \
    X(commit_when_the_dead_gave_no, 5)       \
    X(accept_a_stale_vote, 5)                \
    X(fold_votes_of_two_attempts, 5)         \
    X(fold_one_yes_is_enough, 5)             \
    X(fold_hashes_out_of_order, 5)           \
    X(give_out_an_epoch_again, 5)            \
    X(keep_the_leases_of_a_void_step, 200)   \
    X(quarantine_at_the_first_word, 5)       \
    X(commit_before_durable, 5)              \
    X(return_a_committed_lease, 10)          \
    X(redo_only_the_failed_shard, 5)         \
    X(keep_the_gradient_of_other_ranges, 5)  \
    X(no_new_attempt, 5)                     \
    X(no_new_epoch, 5)                       \
    X(forget_quarantine, 20)                 \
    X(admit_the_unproven, 50)                \
    X(admit_one_step_behind, 5)              \
    X(spares_contribute, 5)                  \
    X(go_on_below_the_minimum, 10)           \
    X(shrink_a_constant_batch, 5)            \
    X(scale_the_rate_of_a_constant_batch, 5) \
    X(lease_to_who_enters, 5)                \
    X(parity_off, 5)                         \
    X(go_on_though_paused, 20)               \
    X(keep_the_drained, 10)                  \
    X(start_the_held, 5)                     \
    X(start_twice, 5)                        \
    X(use_up_no_number, 5)                   \
    X(expel_and_not_stop, 50)                \
    X(take_back_the_expelled, 350)           \
    X(take_a_joiner_for_a_trainer, 350)      \
    X(believe_an_older_report, 50)           \
    X(prove_nobody, 5)                       \
    X(keep_every_snapshot, 5)                \
    X(overlook_the_silent, 5)                \
    X(acknowledge_what_is_not_logged, 5)     \
    X(stop_without_a_checkpoint, 5)          \
    X(forget_a_pause, 20)                    \
    X(forget_to_stop, 5)                     \
    X(forget_who_is_drained, 10)             \
    X(forget_the_updates, 5)                 \
    X(forget_what_was_consumed, 5)           \
    X(evidence_of_any_incarnation, 5)        \
    X(exit_of_any_incarnation, 5)            \
    X(delta_across_a_layout, 5)              \
    X(reuse_an_incarnation, 5)               \
    X(divisor_of_the_plan, 5)                \
    X(learning_rate_of_the_plan, 5)          \
    X(record_without_the_lost, 10)           \
    X(count_a_skip_as_update, 5)             \
    X(clip_the_sum, 5)                       \
    X(record_names_who_enters, 5)            \
    X(count_the_zeros_of_who_enters, 5)      \
    X(schedule_by_step, 5)                   \
    X(manifest_of_a_failed_write, 20)        \
    X(checkpoint_of_the_step_before, 5)      \
    X(expel_the_majority, 100)               \
    X(tell_an_older_hash, 5)                 \
    X(call_a_tie_a_majority, 5)              \
    X(expel_who_matches_its_replay, 5)       \
    X(go_on_though_all_restart, 100)         \
    X(resume_from_the_first_checkpoint, 5)   \
    X(ignore_parity, 5)                      \
    X(forget_the_data_position, 5)           \
    X(forget_the_grouping, 5)                \
    X(group_before_the_move, 50)             \
    X(group_as_before_the_rollback, 50)      \
    X(drop_who_has_no_room, 5)

namespace bulkhead::mutation {

enum class Mutation {
    none,
#define BULKHEAD_X(name, seeds) name,
    BULKHEAD_MUTATION_LIST(BULKHEAD_X)
#undef BULKHEAD_X
};

inline constexpr std::array kNames = {std::string_view("none"),
#define BULKHEAD_X(name, seeds) std::string_view(#name),
                                      BULKHEAD_MUTATION_LIST(BULKHEAD_X)
#undef BULKHEAD_X
};

/// Each is found by one of so many seeds, from 1 on.
inline constexpr std::array<uint64_t, kNames.size()> kSeeds = {0,
#define BULKHEAD_X(name, seeds) seeds,
                                                               BULKHEAD_MUTATION_LIST(BULKHEAD_X)
#undef BULKHEAD_X
};

inline Mutation active = Mutation::none;

}  // namespace bulkhead::mutation

#define MUTATED(name) (::bulkhead::mutation::active == ::bulkhead::mutation::Mutation::name)
