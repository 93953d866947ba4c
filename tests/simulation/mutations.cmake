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
plant(rank_machine.cpp "    if (vote_ != Vote::kNone) return;\n    castVote(in.vote, in.complete);\n}"
  [==[    if (vote_ != Vote::kNone) return;
    castVote(in.vote, in.complete);
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

plant(rank_machine.cpp "    if (next.step != applied_ + 1) {\n        replay_.clear();"
  "    if (next.step != applied_ + 1 && !MUTATED(replay_over_a_gap)) {\n        replay_.clear();")
plant(rank_machine.cpp "    if (orphanSince_ && now"
  "    if (orphanSince_ && !MUTATED(stay_for_ever_as_an_orphan) && now")
plant(rank_machine.cpp "    if (!orphanSince_) orphanSince_ = now;"
  "    if (!orphanSince_) orphanSince_ = MUTATED(leave_at_once_as_an_orphan) ? 0 : now;")

# What is counted.
plant(step_commit.cpp "    if (!result.waitingFor.empty()) return result;"
  [==[    if (MUTATED(commit_on_majority) && !result.hopeless &&
        2 * survivors.size() > ballot.contributors.size())
        result.waitingFor.clear();
    if (!result.waitingFor.empty()) return result;]==])
plant(step_commit.cpp "        if (!it->second.complete) result.hopeless = true;"
  [==[        if (!it->second.complete && !(MUTATED(commit_when_the_dead_gave_no) && !ballot.lost.empty())) result.hopeless = true;]==])
plant(coordinator_step.cpp "if (m.term != q.term || m.step != q.step || m.epoch != q.epoch || m.attempt != q.attempt)"
  "if (m.step != q.step || ((m.term != q.term || m.epoch != q.epoch || m.attempt != q.attempt) && !MUTATED(accept_a_stale_vote)))")
plant(replica_fold.cpp "        if (!ordered || !other || key(*other) == key(part)) continue;"
  "        if (!ordered || !other || key(*other) == key(part) || MUTATED(fold_votes_of_two_attempts)) continue;")
plant(replica_fold.cpp "[&](const auto& p) { return p && key(*p) == key(part); });"
  "[&](const auto& p) { return p && (key(*p) == key(part) || (ordered && MUTATED(fold_votes_of_two_attempts))); });")

plant(replica_fold.cpp "        out.complete = out.complete && v.complete;"
  "        out.complete = MUTATED(fold_one_yes_is_enough) ? out.complete || v.complete : out.complete && v.complete;")
plant(replica_fold.cpp "        if (v.hash) out.hashes.push_back(*v.hash);"
  "        if (v.hash) out.hashes.insert(MUTATED(fold_hashes_out_of_order) ? out.hashes.begin() : out.hashes.end(), *v.hash);")
plant(coordinator_step.cpp "    if (!pending_) return;\n    ledger_.giveBackStep(pending_->step);"
  "    if (!pending_) return;\n    if (!MUTATED(keep_the_leases_of_a_void_step)) ledger_.giveBackStep(pending_->step);")
plant(coordinator_step.cpp "++e.nonFiniteRanges[range] >= 2 || data"
  "++e.nonFiniteRanges[range] >= (MUTATED(quarantine_at_the_first_word) ? 1 : 2) || data")

# When it leaves, and what it consumes.
plant(coordinator_commit.cpp "    const uint64_t sequence = log(LogCommit{record, forLog(figures)}, true);"
  [==[    if (MUTATED(commit_before_durable)) sendCommit(record);
    const uint64_t sequence = log(LogCommit{record, forLog(figures)}, true);]==])
plant(coordinator_replicas.cpp "        if (!open_->committing) abortExchange(why);"
  [==[        if (MUTATED(return_a_committed_lease)) ledger_.giveBack(open_->quorum.step, r.id);
        if (!open_->committing) abortExchange(why);]==])
# The same step again.
plant(rank_machine.cpp "    const bool retained = retainedStep_ == q.step && retainedLayout_ == q.layout &&
                          computation_ == me->computation && ranges_ == me->contribution.ranges;"
  [==[    if (MUTATED(redo_only_the_failed_shard) && current_ && current_->step == q.step && vote_ == Vote::kYes) {
        current_ = q;
        RankVote again = lastVote_;
        castVote(again, true);
        return;
    }
    const bool retained = retainedStep_ == q.step && retainedLayout_ == q.layout && ((computation_ == me->computation && ranges_ == me->contribution.ranges) || MUTATED(keep_the_gradient_of_other_ranges));]==])
plant(coordinator_step.cpp "makeQuorum(e.quorum.step, e.quorum.attempt + 1,"
  "makeQuorum(e.quorum.step, e.quorum.attempt + (MUTATED(no_new_attempt) ? 0 : 1),")
plant(coordinator_step.cpp "    if (members != membership_) {\n        nextEpoch();"
  "    if (members != membership_) {\n        if (!MUTATED(no_new_epoch) || epoch_ == 0) nextEpoch();")
plant(coordinator_step.cpp "log(LogQuarantine{range, why}, false);"
  "if (!MUTATED(forget_quarantine)) log(LogQuarantine{range, why}, false);")

# Who takes part.
plant(quorum.cpp "!c.proven || c.step < state.committed) return"
  "(!c.proven && !MUTATED(admit_the_unproven)) || c.step + (MUTATED(admit_one_step_behind) ? 1 : 0) < state.committed) return")
plant(quorum.cpp "    cut(d.contributors, options.replicas);"
  "    if (!MUTATED(spares_contribute)) cut(d.contributors, options.replicas);")
plant(quorum.cpp "    const size_t needed = std::max<size_t>(1, options.policies.minReplicas);"
  "    const size_t needed = MUTATED(go_on_below_the_minimum) ? 1 : std::max<size_t>(1, options.policies.minReplicas);")
plant(quorum.cpp "    if (options.policies.batch == BatchPolicy::kShrink) return samples;"
  "    if (options.policies.batch == BatchPolicy::kShrink || MUTATED(shrink_a_constant_batch)) return samples;")
plant(quorum.cpp "    if (options.policies.batch == BatchPolicy::kConstant || options.replicas == 0) return 1;"
  "    if ((options.policies.batch == BatchPolicy::kConstant && !MUTATED(scale_the_rate_of_a_constant_batch)) || options.replicas == 0) return 1;")
plant(coordinator_step.cpp "            m.entering = true;\n        } else if"
  "            m.entering = true;\n            if (MUTATED(lease_to_who_enters)) m.contribution.ranges = ledger_.lease(step, r.id, 1).value_or(std::vector<SampleRange>{});\n        } else if")
plant(coordinator_step.cpp "    q.checkParity = every != 0 && (step % every == 0 || comparesBesides(step));"
  "    q.checkParity = every != 0 && (step % every == 0 || comparesBesides(step)) && !MUTATED(parity_off);")
plant(coordinator_step.cpp "    state.paused = paused_;" "    state.paused = paused_ && !MUTATED(go_on_though_paused);")
plant(coordinator_step.cpp "        if (r.leaves()) c.leaving" "        if (r.leaves() && !MUTATED(keep_the_drained)) c.leaving")
plant(coordinator_step.cpp "if (mustWriteBeforeLeaving(r)) {" "if (!MUTATED(give_up_the_last_for_a_gradient) && mustWriteBeforeLeaving(r)) {")
plant(coordinator_replicas.cpp "    if (r.drain || r.hold) return stayOut(r, why);"
  "    if (r.drain || (r.hold && !MUTATED(start_the_held))) return stayOut(r, why);")
plant(coordinator_replicas.cpp "    act(StartReplica{r.id, r.incarnation});"
  "    act(StartReplica{r.id, r.incarnation});\n    if (MUTATED(start_twice)) act(StartReplica{r.id, r.incarnation});")
plant(coordinator_replicas.cpp "    log(LogIncarnation{r.id, r.incarnation}, false);"
  "    if (!MUTATED(use_up_no_number)) log(LogIncarnation{r.id, r.incarnation}, false);")
plant(coordinator_replicas.cpp "    tell(r, Expelled{term_, r.incarnation, why});\n    act(StopReplica{r.id, r.incarnation, true, why});\n    book"
  "    tell(r, Expelled{term_, r.incarnation, why});\n    if (!MUTATED(expel_and_not_stop)) act(StopReplica{r.id, r.incarnation, true, why});\n    book")
plant(coordinator_replicas.cpp "    return recovering_ && !r.alive() && incarnation >= r.incarnation && incarnation > r.gone;"
  "    return recovering_ && !r.alive() && incarnation >= r.incarnation && (incarnation > r.gone || MUTATED(take_back_the_expelled));")
plant(coordinator_replicas.cpp "if (!m.hasState || m.snapshotStep != r->snapshotStep || m.layout != layout_) return;"
  "if (!m.hasState || (!MUTATED(believe_an_older_report) && (m.snapshotStep != r->snapshotStep || m.layout != layout_))) return;")
plant(coordinator_catch_up.cpp "    if (!r.following) return;\n    const bool before"
  "    if (!r.following || MUTATED(prove_nobody)) return;\n    const bool before")
plant(coordinator_catch_up.cpp "    if (needed || !source.alive()) return;"
  "    if (needed || !source.alive() || MUTATED(keep_every_snapshot)) return;")
plant(coordinator_evidence.cpp "void CoordinatorMachine::Impl::judgeSilent() {"
  "void CoordinatorMachine::Impl::judgeSilent() {\n    if (MUTATED(overlook_the_silent)) return;")
plant(coordinator_operations.cpp "    if (refusal.empty()) logOrders();"
  "    if (refusal.empty() && !MUTATED(acknowledge_what_is_not_logged)) logOrders();")
plant(coordinator_operations.cpp "    if (stopCheckpoint_ && !checkpointed()"
  "    if (stopCheckpoint_ && !MUTATED(stop_without_a_checkpoint) && !checkpointed()")
# What a new coordinator knows.
plant(coordinator_recovery.cpp "    paused_ = orders.paused;" "    paused_ = orders.paused && !MUTATED(forget_a_pause);")
plant(coordinator_recovery.cpp "    stopping_ = orders.stopping;" "    stopping_ = orders.stopping && !MUTATED(forget_to_stop);")
plant(coordinator_recovery.cpp "    each(orders.drained, &Replica::drain, ReplicaState::kDrained);"
  "    if (!MUTATED(forget_who_is_drained)) each(orders.drained, &Replica::drain, ReplicaState::kDrained);")
plant(coordinator_machine.cpp "      updates_(recovered.updates)," "      updates_(MUTATED(forget_the_updates) ? 0 : recovered.updates),")
plant(commit_log.cpp "        if (absl::Status s = ledger_.replayCommit(r); !s.ok())"
  "        if (absl::Status s = MUTATED(forget_what_was_consumed) && r.step % 8 == 0 ? absl::OkStatus() : ledger_.replayCommit(r); !s.ok())")
plant(coordinator_evidence.cpp "Replica* accused = current(m.accused.replica, m.incarnation);"
  "Replica* accused = MUTATED(evidence_of_any_incarnation) ? find(m.accused.replica) : current(m.accused.replica, m.incarnation);")
plant(coordinator_replicas.cpp "    Replica* r = current(in.rank.replica, in.incarnation);\n    if (r == nullptr) return;\n    if (leaving_)"
  "    Replica* r = MUTATED(exit_of_any_incarnation) ? find(in.rank.replica) : current(in.rank.replica, in.incarnation);\n    if (r == nullptr) return;\n    if (leaving_)")
plant(rank_machine.cpp "    if (next.layout != layout_) {"
  "    if (next.layout != layout_ && !MUTATED(delta_across_a_layout)) {")
plant(coordinator_operations.cpp "        if (r.joining()) planFetch(r, \"experts have moved\");"
  "        if (r.joining() && !MUTATED(delta_across_a_layout)) planFetch(r, \"experts have moved\");")
plant(coordinator_replicas.cpp "    r.incarnation = std::max(r.incarnation, r.heard) + 1;"
  "    if (!MUTATED(reuse_an_incarnation) || r.incarnation == 0) r.incarnation = std::max(r.incarnation, r.heard) + 1;")

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

plant(step_commit.cpp "    const double norm = gradientNorm(*in.gradSquares, divisor);"
  "    const double norm = gradientNorm(*in.gradSquares, MUTATED(clip_the_sum) ? 1 : divisor);")
plant(step_commit.cpp "        if (m.entering) continue;\n"
  "        if (m.entering && !MUTATED(record_names_who_enters)) {\n            if (MUTATED(count_the_zeros_of_who_enters)) r.samples += options.samplesPerReplica;\n            continue;\n        }\n")
plant(step_commit.cpp "    const uint64_t update = std::max<uint64_t>(1, r.updates);"
  "    const uint64_t update = std::max<uint64_t>(1, MUTATED(schedule_by_step) ? r.step : r.updates);")
plant(coordinator_commit.cpp "    if (done.ok) {\n        entry.path = done.path;"
  "    if (done.ok || MUTATED(manifest_of_a_failed_write)) {\n        entry.path = done.path;")
plant(coordinator_commit.cpp "    LogCheckpoint entry{lineage_, step, updates_,"
  "    LogCheckpoint entry{lineage_, step - (MUTATED(checkpoint_of_the_step_before) ? 1 : 0), updates_,")

# Which shard computes what.
plant(coordinator_machine.cpp "      domainShare_(recovered.domainShare),"
  "      domainShare_(MUTATED(forget_the_grouping) ? std::vector<uint32_t>() : recovered.domainShare),")
plant(coordinator_operations.cpp "            move_->domainShare = in.domainShare;"
  "            move_->domainShare = in.domainShare;\n            if (MUTATED(group_before_the_move)) domainShare_ = in.domainShare;")
plant(coordinator_replicas.cpp "        domainShare_ = c.domainShare;"
  "        if (!MUTATED(group_as_before_the_rollback)) domainShare_ = c.domainShare;")
plant(sample_deal.cpp "    for (const Sample& sample : left)"
  "    for (const Sample& sample : MUTATED(drop_who_has_no_room) ? std::vector<Sample>() : left)")

# Parity and ways back.
plant(parity.cpp "        if (majority) result.odd.push_back(replica);"
  "        if (majority && !MUTATED(expel_the_majority)) result.odd.push_back(replica);")
plant(parity.cpp "        if (hashes == *largest->first) continue;"
  [==[        if (majority && MUTATED(expel_the_majority) && hashes == *largest->first) result.odd.push_back(replica);
        if (hashes == *largest->first) continue;]==])
plant(rank_machine.cpp "    appliedEpoch_ = last_->epoch;\n    const bool owesHash = reportsHash_;  // a coordinator asked, of the state before\n    stateChanged();\n    if (replay_.empty()) {"
  "    appliedEpoch_ = last_->epoch;\n    const bool owesHash = reportsHash_;\n    if (!MUTATED(tell_an_older_hash)) stateChanged();\n    if (replay_.empty()) {")
plant(parity.cpp "    const bool majority = 2 * largest->second > byReplica.size();"
  "    const bool majority = 2 * largest->second + (MUTATED(call_a_tie_a_majority) ? 1 : 0) > byReplica.size();")
plant(coordinator_replicas.cpp "    if (options_.policies.recovery == RecoveryPolicy::kRestartAll)"
  "    if (options_.policies.recovery == RecoveryPolicy::kRestartAll && !MUTATED(go_on_though_all_restart))")
plant(coordinator_step.cpp "    if (!open_->quorum.checkParity) return true;"
  "    if (!open_->quorum.checkParity || MUTATED(ignore_parity)) return true;")
plant(coordinator_replicas.cpp "        if (auto ledger = DataLedger::restore(c.ledger, options_.domainWeights); ledger.ok())\n            ledger_ = *std::move(ledger);"
  "        if (auto ledger = DataLedger::restore(c.ledger, options_.domainWeights); ledger.ok() && !MUTATED(forget_the_data_position))\n            ledger_ = *std::move(ledger);")

# Checkpoints: which are there, which may go, who leaves without one.
plant(coordinator_commit.cpp "    log(LogCheckpointsDropped{std::move(paths), false}, false);"
  "    if (!MUTATED(remove_what_the_log_names)) log(LogCheckpointsDropped{std::move(paths), false}, false);")
plant(checkpoint_book.cpp "    known_.insert(at, std::move(checkpoint));"
  "    known_.insert(MUTATED(keep_checkpoints_by_arrival) ? known_.end() : at, std::move(checkpoint));")
plant(coordinator_replicas.cpp "        if (dropped || checkpoints_.find(c.path) != nullptr) continue;"
  "        if (dropped || checkpoints_.find(c.path) != nullptr || MUTATED(overlook_what_orphans_wrote)) continue;")
plant(coordinator_replicas.cpp "    if (agreed != nullptr && !found.hashes.empty()) return found.hashes != *agreed;"
  "    if (MUTATED(go_back_to_what_was_disputed)) return false;\n    if (agreed != nullptr && !found.hashes.empty()) return found.hashes != *agreed;")
plant(checkpoint_book.cpp "    return !stored.hashes.empty() && std::ranges::any_of(log,"
  "    return !MUTATED(go_back_to_what_was_disputed) && !stored.hashes.empty() && std::ranges::any_of(log,")
plant(coordinator_replicas.cpp "        if (!stopping_ && mustWriteBeforeLeaving(r)) continue;"
  "        if (!stopping_ && !MUTATED(drain_the_last_that_holds_it) && mustWriteBeforeLeaving(r)) continue;")
file(WRITE ${OUT} "#include \"tests/simulation/mutation.h\"\n${text}")
