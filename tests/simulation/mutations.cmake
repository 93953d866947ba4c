# SPDX-License-Identifier: Apache-2.0
# cmake -DIN=FILE -DOUT=FILE -P mutations.cmake: a copy of a protocol source with the bugs of mutation.h
# planted into it, each behind MUTATED(name). A place that is no longer there is an error: find the
# new one, so that the simulator goes on being tried.

get_filename_component(file ${IN} NAME)
file(READ ${IN} text)

function(plant where old new)
  if(NOT where STREQUAL file)
    return()
  endif()
  string(FIND "${text}" "${old}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "tests/simulation/mutations.cmake: ${where} no longer has\n${old}")
  endif()
  string(REPLACE "${old}" "${new}" text "${text}")
  set(text "${text}" PARENT_SCOPE)
endfunction()

# Fences of a rank.
plant(rank_machine.cpp "if (term < term_) {"
  "if (term < term_ && !MUTATED(accept_older_term)) {")
plant(rank_machine.cpp [==[    if (!current_ || id != idOf(*current_)) {
        ++fenced_;
        return;
    }
    if (vote_ != Vote::kNone) return;
    act(AbortExchange{id, m.why});]==] [==[    if (!current_ || (id != idOf(*current_) && !MUTATED(act_on_any_abort))) {
        ++fenced_;
        return;
    }
    if (vote_ != Vote::kNone) return;
    act(AbortExchange{idOf(*current_), m.why});]==])
# What is applied, and when.
plant(rank_machine.cpp "    castVote(in.vote, in.complete, !in.complete && nonFinite_);\n}"
  [==[    castVote(in.vote, in.complete, !in.complete && nonFinite_);
    if (MUTATED(apply_before_commit) && in.complete) {
        CommitRecord early;
        early.lineage = lineage_;
        early.term = current_->term;
        early.step = current_->step;
        early.epoch = current_->epoch;
        early.attempt = current_->attempt;
        act(ApplyCommit{early, false, ""});
    }
}]==])
plant(rank_machine.cpp "if (current_ && idOf(*current_) == id && vote_ == Vote::kYes) {"
  "if (current_ && ((idOf(*current_) == id && vote_ == Vote::kYes) || (MUTATED(apply_without_the_sum) && current_->step == r.step))) {")

# What is counted.
plant(step_commit.cpp "    if (!result.waitingFor.empty()) return result;"
  [==[    if (MUTATED(commit_on_majority) && !result.hopeless &&
        2 * survivors.size() > ballot.contributors.size())
        result.waitingFor.clear();
    if (!result.waitingFor.empty()) return result;]==])
plant(step_commit.cpp "        if (!it->second.complete) result.hopeless = true;"
  [==[        if (!it->second.complete && !(MUTATED(commit_when_the_dead_gave_no) && !ballot.lost.empty())) result.hopeless = true;]==])
plant(coordinator_step.cpp "if (m.step != q.step || m.epoch != q.epoch || m.attempt != q.attempt) return;"
  "if (m.step != q.step || ((m.epoch != q.epoch || m.attempt != q.attempt) && !MUTATED(accept_a_stale_vote))) return;")
plant(replica_fold.cpp "        if (!other || key(*other) == key(part)) continue;"
  "        if (!other || key(*other) == key(part) || (ordered && MUTATED(fold_votes_of_two_attempts))) continue;")

# When it leaves, and what it consumes.
plant(coordinator_commit.cpp "    const uint64_t sequence = log(LogCommit{record, forLog(figures)}, true);"
  [==[    if (MUTATED(commit_before_durable)) sendCommit(record);
    const uint64_t sequence = log(LogCommit{record, forLog(figures)}, true);]==])
plant(coordinator_replicas.cpp "        if (!open_->committing) abortExchange(why);"
  [==[        if (MUTATED(return_a_committed_lease)) ledger_.giveBack(open_->quorum.step, r.id);
        if (!open_->committing) abortExchange(why);]==])
# The same step again.
plant(rank_machine.cpp "    const bool retained = retainedStep_ == q.step && ranges_ == me->contribution.ranges;"
  [==[    if (MUTATED(redo_only_the_failed_shard) && current_ && current_->step == q.step && vote_ == Vote::kYes) {
        current_ = q;
        RankVote again = *lastVote_;
        castVote(again, true, false);
        return;
    }
    const bool retained = retainedStep_ == q.step && (ranges_ == me->contribution.ranges || MUTATED(keep_the_gradient_of_other_ranges));]==])
plant(coordinator_step.cpp "makeQuorum(e.quorum.step, e.quorum.attempt + 1,"
  "makeQuorum(e.quorum.step, e.quorum.attempt + (MUTATED(no_new_attempt) ? 0 : 1),")
plant(coordinator_step.cpp "    if (members != membership_) {\n        ++epoch_;"
  "    if (members != membership_) {\n        if (!MUTATED(no_new_epoch) || epoch_ == 0) ++epoch_;")
plant(coordinator_step.cpp "log(LogQuarantine{range, why}, false);"
  "if (!MUTATED(forget_quarantine)) log(LogQuarantine{range, why}, false);")

# Who takes part.
plant(step_commit.cpp "        if (m.entering) continue;\n        r.contributors"
  "        if (m.entering && !MUTATED(record_names_who_enters)) continue;\n        r.contributors")
plant(rank_machine.cpp "    replayingSum_ = sum_ == ExchangeId{next.step, next.epoch, next.attempt};"
  "    replayingSum_ = sum_ == ExchangeId{next.step, next.epoch, next.attempt} || (MUTATED(replay_the_sum_of_another_attempt) && sum_ && sum_->step == next.step);")
plant(coordinator_evidence.cpp "Replica* accused = current(m.accused.replica, m.incarnation);"
  "Replica* accused = MUTATED(evidence_of_any_incarnation) ? find(m.accused.replica) : current(m.accused.replica, m.incarnation);")
plant(coordinator_replicas.cpp "void CoordinatorMachine::Impl::on(const RankExited& in) {\n    Replica* r = current(in.rank.replica, in.incarnation);"
  "void CoordinatorMachine::Impl::on(const RankExited& in) {\n    Replica* r = MUTATED(exit_of_any_incarnation) ? find(in.rank.replica) : current(in.rank.replica, in.incarnation);")
plant(rank_machine.cpp "    if (next.layout != layout_) {"
  "    if (next.layout != layout_ && !MUTATED(delta_across_a_layout)) {")
plant(coordinator_operations.cpp "        if (r.joining()) planFetch(r, \"experts have moved\");"
  "        if (r.joining() && !MUTATED(delta_across_a_layout)) planFetch(r, \"experts have moved\");")
plant(coordinator_replicas.cpp "    ++r.incarnation;"
  "    if (!MUTATED(reuse_an_incarnation) || r.incarnation == 0) ++r.incarnation;")

# What a record says.
plant(step_commit.cpp "    const double divisor = std::max<double>(1, static_cast<double>(r.tokens));"
  [==[    const double divisor =
        MUTATED(divisor_of_the_plan)
            ? static_cast<double>(options.replicas * options.samplesPerReplica * options.sequenceLength)
            : std::max<double>(1, static_cast<double>(r.tokens));]==])
plant(coordinator_step.cpp "    d.lrFactor = lrFactor(options_, members.size());"
  "    d.lrFactor = MUTATED(learning_rate_of_the_plan) ? e.quorum.lrFactor : lrFactor(options_, members.size());")
plant(coordinator_commit.cpp "    CommitRecord record = makeRecord(in, options_);"
  [==[    CommitRecord record = makeRecord(in, options_);
    if (MUTATED(record_without_the_lost))
        std::erase_if(record.contributors, [&](const Contribution& c) { return !contributes(c.replica); });]==])
plant(step_commit.cpp "    r.updates = in.updatesBefore + (r.skip ? 0 : 1);"
  "    r.updates = in.updatesBefore + (r.skip && !MUTATED(count_a_skip_as_update) ? 0 : 1);")

# Parity and ways back.
plant(coordinator_step.cpp "    if (!open_->quorum.checkParity) return true;"
  "    if (!open_->quorum.checkParity || MUTATED(ignore_parity)) return true;")
plant(coordinator_replicas.cpp "        if (auto ledger = DataLedger::restore(c.ledger, options_.domainWeights); ledger.ok())\n            ledger_ = *std::move(ledger);"
  "        if (auto ledger = DataLedger::restore(c.ledger, options_.domainWeights); ledger.ok() && !MUTATED(forget_the_data_position))\n            ledger_ = *std::move(ledger);")

file(WRITE ${OUT} "#include \"tests/simulation/mutation.h\"\n${text}")
