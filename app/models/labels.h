// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>

#include "backend/model/event.h"

/// The operator's words for the model's values, in one place. Thread: any.
namespace bulkhead::ui {

/// The severity of a thing at a glance. Colours follow from it; words always stand beside it.
enum class Tone { kNeutral, kGood, kBusy, kNotice, kWarning, kBad, kMuted };

QString label(model::ReplicaState state);
QString label(model::RankPhase phase);
QString label(model::JobPhase phase);
QString label(model::EvidenceKind kind);
QString label(model::IncidentPhaseKind kind);
QString label(model::FaultKind kind);
QString label(model::ActionKind kind);
QString label(model::Severity severity);
QString label(model::CampaignOutcome outcome);
QString label(model::CampaignCheck check);
QString label(model::VerdictState state);

Tone tone(model::ReplicaState state);
Tone tone(model::JobPhase phase);
Tone tone(model::Severity severity);
Tone tone(model::CampaignOutcome outcome);
Tone tone(model::VerdictState state);

QString replicaName(int32_t replica);
QString rankName(RankId rank);
QString toQt(std::string_view text);

}  // namespace bulkhead::ui
