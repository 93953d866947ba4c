// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

/// Deliberate bugs of the protocol, for the simulator to find (mutations.cmake plants them into a
/// copy of backend/runtime/protocol; the product never sees them). One is active at a time.
#define BULKHEAD_MUTATION_LIST(X)         \
    X(accept_older_term)                  \
    X(act_on_any_abort)                   \
    X(apply_before_commit)                \
    X(apply_without_the_sum)              \
    X(replay_over_a_gap)                  \
    X(stay_for_ever_as_an_orphan)         \
    X(leave_at_once_as_an_orphan)         \
    X(commit_on_majority)                 \
    X(commit_when_the_dead_gave_no)       \
    X(accept_a_stale_vote)                \
    X(fold_votes_of_two_attempts)         \
    X(fold_one_yes_is_enough)             \
    X(fold_hashes_out_of_order)           \
    X(keep_the_leases_of_a_void_step)     \
    X(quarantine_at_the_first_word)       \
    X(commit_before_durable)              \
    X(return_a_committed_lease)           \
    X(redo_only_the_failed_shard)         \
    X(keep_the_gradient_of_other_ranges)  \
    X(no_new_attempt)                     \
    X(no_new_epoch)                       \
    X(forget_quarantine)                  \
    X(admit_the_unproven)                 \
    X(admit_one_step_behind)              \
    X(spares_contribute)                  \
    X(go_on_below_the_minimum)            \
    X(shrink_a_constant_batch)            \
    X(scale_the_rate_of_a_constant_batch) \
    X(lease_to_who_enters)                \
    X(parity_off)                         \
    X(go_on_though_paused)                \
    X(keep_the_drained)                   \
    X(give_up_the_last_for_a_gradient)    \
    X(start_the_held)                     \
    X(start_twice)                        \
    X(use_up_no_number)                   \
    X(expel_and_not_stop)                 \
    X(take_back_the_expelled)             \
    X(believe_an_older_report)            \
    X(prove_nobody)                       \
    X(keep_every_snapshot)                \
    X(overlook_the_silent)                \
    X(acknowledge_what_is_not_logged)     \
    X(stop_without_a_checkpoint)          \
    X(forget_a_pause)                     \
    X(forget_to_stop)                     \
    X(forget_who_is_drained)              \
    X(forget_the_updates)                 \
    X(forget_what_was_consumed)           \
    X(evidence_of_any_incarnation)        \
    X(exit_of_any_incarnation)            \
    X(delta_across_a_layout)              \
    X(reuse_an_incarnation)               \
    X(divisor_of_the_plan)                \
    X(learning_rate_of_the_plan)          \
    X(record_without_the_lost)            \
    X(count_a_skip_as_update)             \
    X(clip_the_sum)                       \
    X(record_names_who_enters)            \
    X(count_the_zeros_of_who_enters)      \
    X(schedule_by_step)                   \
    X(manifest_of_a_failed_write)         \
    X(checkpoint_of_the_step_before)      \
    X(expel_the_majority)                 \
    X(tell_an_older_hash)                 \
    X(call_a_tie_a_majority)              \
    X(go_on_though_all_restart)           \
    X(ignore_parity)                      \
    X(forget_the_data_position)           \
    X(forget_the_grouping)                \
    X(group_before_the_move)              \
    X(group_as_before_the_rollback)       \
    X(drop_who_has_no_room)               \
    X(remove_what_the_log_names)          \
    X(keep_checkpoints_by_arrival)        \
    X(overlook_what_orphans_wrote)        \
    X(go_back_to_what_was_disputed)       \
    X(drain_the_last_that_holds_it)

namespace bulkhead::mutation {

enum class Mutation {
    none,
#define BULKHEAD_X(name) name,
    BULKHEAD_MUTATION_LIST(BULKHEAD_X)
#undef BULKHEAD_X
};

inline constexpr std::array kNames = {std::string_view("none"),
#define BULKHEAD_X(name) std::string_view(#name),
                                      BULKHEAD_MUTATION_LIST(BULKHEAD_X)
#undef BULKHEAD_X
};

inline Mutation active = Mutation::none;

}  // namespace bulkhead::mutation

#define MUTATED(name) (::bulkhead::mutation::active == ::bulkhead::mutation::Mutation::name)
