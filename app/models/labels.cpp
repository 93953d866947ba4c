// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/labels.h"

#include <QCoreApplication>
#include <array>

namespace bulkhead::ui {
namespace {

QString tr(const char* text) {
    return QCoreApplication::translate("labels", text);
}

template <size_t N, class E>
QString pick(const std::array<const char*, N>& words, E value) {
    const auto i = static_cast<size_t>(value);
    return i < N ? tr(words[i]) : QStringLiteral("?");
}

}  // namespace

QString label(model::ReplicaState state) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("labels", "Absent"),    QT_TRANSLATE_NOOP("labels", "Backing off"),
        QT_TRANSLATE_NOOP("labels", "Starting"),  QT_TRANSLATE_NOOP("labels", "Fetching"),
        QT_TRANSLATE_NOOP("labels", "Replaying"), QT_TRANSLATE_NOOP("labels", "Joining"),
        QT_TRANSLATE_NOOP("labels", "Training"),  QT_TRANSLATE_NOOP("labels", "Drained"),
        QT_TRANSLATE_NOOP("labels", "Held"),      QT_TRANSLATE_NOOP("labels", "Failed")};
    return pick(kWords, state);
}

QString label(model::RankPhase phase) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("labels", "Starting"), QT_TRANSLATE_NOOP("labels", "Idle"),
        QT_TRANSLATE_NOOP("labels", "Compute"),  QT_TRANSLATE_NOOP("labels", "Exchange"),
        QT_TRANSLATE_NOOP("labels", "Vote"),     QT_TRANSLATE_NOOP("labels", "Apply"),
        QT_TRANSLATE_NOOP("labels", "Fetch"),    QT_TRANSLATE_NOOP("labels", "Replay"),
        QT_TRANSLATE_NOOP("labels", "Gone")};
    return pick(kWords, phase);
}

QString label(model::JobPhase phase) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("labels", "Starting"), QT_TRANSLATE_NOOP("labels", "Training"),
        QT_TRANSLATE_NOOP("labels", "Waiting"),  QT_TRANSLATE_NOOP("labels", "Paused"),
        QT_TRANSLATE_NOOP("labels", "Stopping"), QT_TRANSLATE_NOOP("labels", "Finished"),
        QT_TRANSLATE_NOOP("labels", "Failed")};
    return pick(kWords, phase);
}

QString label(model::EvidenceKind kind) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("labels", "Process exit"),
                                          QT_TRANSLATE_NOOP("labels", "Transport reset"),
                                          QT_TRANSLATE_NOOP("labels", "Chunk timeout"),
                                          QT_TRANSLATE_NOOP("labels", "Missed heartbeat"),
                                          QT_TRANSLATE_NOOP("labels", "Missed progress"),
                                          QT_TRANSLATE_NOOP("labels", "Parity mismatch"),
                                          QT_TRANSLATE_NOOP("labels", "Non-finite value"),
                                          QT_TRANSLATE_NOOP("labels", "Commit failed"),
                                          QT_TRANSLATE_NOOP("labels", "Operator"),
                                          QT_TRANSLATE_NOOP("labels", "Node lost")};
    return pick(kWords, kind);
}

QString label(model::IncidentPhaseKind kind) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("labels", "Detect"),  QT_TRANSLATE_NOOP("labels", "Decide"),
        QT_TRANSLATE_NOOP("labels", "Re-form"), QT_TRANSLATE_NOOP("labels", "Re-exchange"),
        QT_TRANSLATE_NOOP("labels", "Restart"), QT_TRANSLATE_NOOP("labels", "Init"),
        QT_TRANSLATE_NOOP("labels", "Fetch"),   QT_TRANSLATE_NOOP("labels", "Replay"),
        QT_TRANSLATE_NOOP("labels", "Join")};
    return pick(kWords, kind);
}

QString label(model::FaultKind kind) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("labels", "Kill a rank"),
                                          QT_TRANSLATE_NOOP("labels", "Kill a replica"),
                                          QT_TRANSLATE_NOOP("labels", "Hang"),
                                          QT_TRANSLATE_NOOP("labels", "Slow down"),
                                          QT_TRANSLATE_NOOP("labels", "Cut the network"),
                                          QT_TRANSLATE_NOOP("labels", "Delay the network"),
                                          QT_TRANSLATE_NOOP("labels", "Flip a gradient bit"),
                                          QT_TRANSLATE_NOOP("labels", "NaN in a gradient"),
                                          QT_TRANSLATE_NOOP("labels", "Flip a parameter bit"),
                                          QT_TRANSLATE_NOOP("labels", "Fill the checkpoint disk"),
                                          QT_TRANSLATE_NOOP("labels", "Kill a node")};
    return pick(kWords, kind);
}

QString label(model::ActionKind kind) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("labels", "Drain"),
                                          QT_TRANSLATE_NOOP("labels", "Cordon"),
                                          QT_TRANSLATE_NOOP("labels", "Uncordon"),
                                          QT_TRANSLATE_NOOP("labels", "Hold rejoin of"),
                                          QT_TRANSLATE_NOOP("labels", "Release"),
                                          QT_TRANSLATE_NOOP("labels", "Restart"),
                                          QT_TRANSLATE_NOOP("labels", "Pause"),
                                          QT_TRANSLATE_NOOP("labels", "Resume"),
                                          QT_TRANSLATE_NOOP("labels", "Checkpoint now"),
                                          QT_TRANSLATE_NOOP("labels", "Stop"),
                                          QT_TRANSLATE_NOOP("labels", "Set policy")};
    return pick(kWords, kind);
}

QString label(model::Severity severity) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("labels", "Info"), QT_TRANSLATE_NOOP("labels", "Notice"),
        QT_TRANSLATE_NOOP("labels", "Warning"), QT_TRANSLATE_NOOP("labels", "Error")};
    return pick(kWords, severity);
}

QString label(model::CampaignOutcome outcome) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("labels", "Passed"), QT_TRANSLATE_NOOP("labels", "Failed"),
        QT_TRANSLATE_NOOP("labels", "Aborted"), QT_TRANSLATE_NOOP("labels", "Cut off")};
    return pick(kWords, outcome);
}

QString label(model::CampaignCheck check) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("labels", "Faults injected"),
                                          QT_TRANSLATE_NOOP("labels", "Invariants"),
                                          QT_TRANSLATE_NOOP("labels", "State hashes"),
                                          QT_TRANSLATE_NOOP("labels", "Data ledger"),
                                          QT_TRANSLATE_NOOP("labels", "Effective time"),
                                          QT_TRANSLATE_NOOP("labels", "Longest stall"),
                                          QT_TRANSLATE_NOOP("labels", "Longest rejoin")};
    return pick(kWords, check);
}

QString label(model::VerdictState state) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("labels", "Holds so far"),
                                          QT_TRANSLATE_NOOP("labels", "Passed"),
                                          QT_TRANSLATE_NOOP("labels", "Failed")};
    return pick(kWords, state);
}

Tone tone(model::CampaignOutcome outcome) {
    using enum model::CampaignOutcome;
    switch (outcome) {
        case kPassed:
            return Tone::kGood;
        case kFailed:
            return Tone::kBad;
        case kAborted:
        case kCutOff:
            return Tone::kWarning;
    }
    return Tone::kNeutral;
}

Tone tone(model::VerdictState state) {
    using enum model::VerdictState;
    switch (state) {
        case kOpen:
            return Tone::kNeutral;
        case kPassed:
            return Tone::kGood;
        case kFailed:
            return Tone::kBad;
    }
    return Tone::kNeutral;
}

Tone tone(model::ReplicaState state) {
    using enum model::ReplicaState;
    switch (state) {
        case kTraining:
            return Tone::kGood;
        case kFetching:
        case kReplaying:
        case kProven:
        case kStarting:
            return Tone::kBusy;
        case kBackingOff:
            return Tone::kWarning;
        case kFailed:
            return Tone::kBad;
        case kAbsent:
        case kDrained:
        case kHeld:
            return Tone::kMuted;
    }
    return Tone::kNeutral;
}

Tone tone(model::JobPhase phase) {
    using enum model::JobPhase;
    switch (phase) {
        case kTraining:
            return Tone::kGood;
        case kStarting:
        case kStopping:
            return Tone::kBusy;
        case kWaiting:
            return Tone::kWarning;
        case kPaused:
            return Tone::kNotice;
        case kFinished:
            return Tone::kMuted;
        case kFailed:
            return Tone::kBad;
    }
    return Tone::kNeutral;
}

Tone tone(model::Severity severity) {
    using enum model::Severity;
    switch (severity) {
        case kInfo:
            return Tone::kNeutral;
        case kNotice:
            return Tone::kNotice;
        case kWarning:
            return Tone::kWarning;
        case kError:
            return Tone::kBad;
    }
    return Tone::kNeutral;
}

bool isSurvivorPhase(model::IncidentPhaseKind kind) {
    return kind <= model::IncidentPhaseKind::kReexchange;
}

QString replicaName(int32_t replica) {
    return replica < 0 ? tr("all") : QStringLiteral("r%1").arg(replica);
}

QString rankName(RankId rank) {
    return QStringLiteral("r%1s%2").arg(rank.replica).arg(rank.shard);
}

QString toQt(std::string_view text) {
    return QString::fromUtf8(text.data(), static_cast<qsizetype>(text.size()));
}

}  // namespace bulkhead::ui
