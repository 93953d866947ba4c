// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

/// Deliberate bugs of the protocol, for the simulator to find (mutations.cmake plants them into a
/// copy of backend/runtime/protocol; the product never sees them). One is active at a time.
#define BULKHEAD_MUTATION_LIST(X)        \
    X(accept_older_term)                 \
    X(act_on_any_abort)                  \
    X(apply_before_commit)               \
    X(apply_without_the_sum)             \
    X(commit_on_majority)                \
    X(commit_when_the_dead_gave_no)      \
    X(accept_a_stale_vote)               \
    X(fold_votes_of_two_attempts)        \
    X(commit_before_durable)             \
    X(return_a_committed_lease)          \
    X(redo_only_the_failed_shard)        \
    X(keep_the_gradient_of_other_ranges) \
    X(forget_quarantine)                 \
    X(evidence_of_any_incarnation)       \
    X(exit_of_any_incarnation)           \
    X(delta_across_a_layout)             \
    X(divisor_of_the_plan)               \
    X(learning_rate_of_the_plan)         \
    X(record_without_the_lost)           \
    X(no_new_epoch)                      \
    X(no_new_attempt)                    \
    X(ignore_parity)                     \
    X(count_a_skip_as_update)            \
    X(forget_the_data_position)          \
    X(reuse_an_incarnation)              \
    X(record_names_who_enters)           \
    X(replay_the_sum_of_another_attempt)

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
