// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/run_feed.h"

#include <type_traits>

namespace bulkhead::ui {
namespace {

/// The counters that an event changes.
struct Bump {
    Revisions& r;

    void operator()(const model::FleetSampled&) const { ++r.fleet; }
    void operator()(const model::CatchUpProgress&) const { ++r.fleet; }
    void operator()(const model::RankStarted&) const { ++r.fleet; }
    void operator()(const model::RankExited&) const { ++r.fleet; }
    void operator()(const model::RankOutput&) const { ++r.fleet; }
    void operator()(const model::NodeChanged&) const { ++r.fleet; }
    void operator()(const model::ProgramSeen&) const { ++r.fleet; }
    void operator()(const model::GpuTroubled&) const {
        ++r.fleet;
        ++r.status;
    }
    void operator()(const model::ReplicaChanged&) const {
        ++r.fleet;
        ++r.lanes;
        ++r.status;
    }
    void operator()(const model::QuorumDecided&) const { ++r.status; }
    void operator()(const model::StepCommitted&) const {
        ++r.status;
        ++r.steps;
        ++r.fleet;
    }
    void operator()(const model::ExpertLoads&) const { ++r.experts; }
    void operator()(const model::OperatorActed&) const {
        ++r.incidents;
        ++r.experts;  // pins, and what was dismissed
        ++r.status;
    }
    template <class T>
    void operator()(const T&) const {
        ++r.status;
        ++r.lanes;
        ++r.incidents;
        if constexpr (std::is_same_v<T, model::LineageOpened> ||
                      std::is_same_v<T, model::StepsSuspect> ||
                      std::is_same_v<T, model::RunStarted>)
            ++r.steps;
        if constexpr (std::is_same_v<T, model::LayoutChanged> ||
                      std::is_same_v<T, model::PlanProposed> ||
                      std::is_same_v<T, model::ModelDescribed>)
            ++r.experts;
    }
};

}  // namespace

RunFeed::RunFeed(QObject* parent) : QObject(parent) {}

void RunFeed::reset(const model::RunState& state) {
    state_ = state;
    hasRun_ = true;
    bumpAll();
    Q_EMIT wasReset();
    Q_EMIT updated();
}

void RunFeed::apply(const std::vector<model::Event>& events) {
    if (events.empty()) return;
    hasRun_ = true;
    for (const model::Event& event : events) {
        model::apply(state_, event);
        std::visit(Bump{revisions_}, event.body);
    }
    Q_EMIT received(events);
    Q_EMIT updated();
}

void RunFeed::clear() {
    state_ = {};
    hasRun_ = false;
    bumpAll();
    Q_EMIT wasReset();
    Q_EMIT updated();
}

void RunFeed::setUnseen(double ms) {
    if (ms == unseenMs_) return;
    unseenMs_ = ms;
    ++revisions_.fleet;
    Q_EMIT updated();
}

void RunFeed::bumpAll() {
    ++revisions_.status;
    ++revisions_.fleet;
    ++revisions_.lanes;
    ++revisions_.steps;
    ++revisions_.experts;
    ++revisions_.incidents;
}

}  // namespace bulkhead::ui
