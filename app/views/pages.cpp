// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/pages.h"

#include "app/views/audit_view.h"
#include "app/views/events_view.h"
#include "app/views/experts_view.h"
#include "app/views/faults_view.h"
#include "app/views/fleet_view.h"
#include "app/views/incidents_view.h"
#include "app/views/placement_view.h"
#include "app/views/runs_view.h"
#include "app/views/timeline_view.h"
#include "app/views/training_view.h"
#include "app/views/what_if_view.h"

namespace bulkhead::ui {
namespace {

template <class V>
View* make(ViewContext& context) {
    return new V(context);
}

}  // namespace

const std::vector<Page>& pages() {
    static const std::vector<Page> list = {
        {Place::kLeft, make<FleetView>},      {Place::kLeft, make<TimelineView>},
        {Place::kRight, make<TrainingView>},  {Place::kRight, make<ExpertsView>},
        {Place::kRight, make<FaultsView>},    {Place::kRight, make<RunsView>},
        {Place::kRight, make<EventsView>},    {Place::kRight, make<WhatIfView>},
        {Place::kRight, make<PlacementView>}, {Place::kRight, make<AuditView>},
        {Place::kRight, make<IncidentsView>}};
    return list;
}

}  // namespace bulkhead::ui
