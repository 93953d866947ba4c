// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/labels.h"

#include <array>

#include "app/models/words.h"
#include "backend/model/rank_name.h"

namespace bulkhead::ui {
namespace {

template <size_t N, class E>
QString pick(const std::array<const char*, N>& words, E value) {
    const auto i = static_cast<size_t>(value);
    return i < N ? tr(words[i]) : QStringLiteral("?");
}

}  // namespace

QString label(model::ReplicaState state) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("models", "Absent"),    QT_TRANSLATE_NOOP("models", "Backing off"),
        QT_TRANSLATE_NOOP("models", "Starting"),  QT_TRANSLATE_NOOP("models", "Fetching"),
        QT_TRANSLATE_NOOP("models", "Replaying"), QT_TRANSLATE_NOOP("models", "Joining"),
        QT_TRANSLATE_NOOP("models", "Training"),  QT_TRANSLATE_NOOP("models", "Drained"),
        QT_TRANSLATE_NOOP("models", "Held"),      QT_TRANSLATE_NOOP("models", "Failed")};
    return pick(kWords, state);
}

QString label(model::RankPhase phase) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("models", "Starting"), QT_TRANSLATE_NOOP("models", "Idle"),
        QT_TRANSLATE_NOOP("models", "Compute"),  QT_TRANSLATE_NOOP("models", "Exchange"),
        QT_TRANSLATE_NOOP("models", "Vote"),     QT_TRANSLATE_NOOP("models", "Apply"),
        QT_TRANSLATE_NOOP("models", "Fetch"),    QT_TRANSLATE_NOOP("models", "Replay"),
        QT_TRANSLATE_NOOP("models", "Gone")};
    return pick(kWords, phase);
}

QString label(model::JobPhase phase) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("models", "Starting"), QT_TRANSLATE_NOOP("models", "Training"),
        QT_TRANSLATE_NOOP("models", "Waiting"),  QT_TRANSLATE_NOOP("models", "Paused"),
        QT_TRANSLATE_NOOP("models", "Stopping"), QT_TRANSLATE_NOOP("models", "Finished"),
        QT_TRANSLATE_NOOP("models", "Failed")};
    return pick(kWords, phase);
}

QString label(model::EvidenceKind kind) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("models", "Process exit"),
                                          QT_TRANSLATE_NOOP("models", "Transport reset"),
                                          QT_TRANSLATE_NOOP("models", "Chunk timeout"),
                                          QT_TRANSLATE_NOOP("models", "Missed heartbeat"),
                                          QT_TRANSLATE_NOOP("models", "Missed progress"),
                                          QT_TRANSLATE_NOOP("models", "Parity mismatch"),
                                          QT_TRANSLATE_NOOP("models", "Non-finite value"),
                                          QT_TRANSLATE_NOOP("models", "Commit failed"),
                                          QT_TRANSLATE_NOOP("models", "Operator"),
                                          QT_TRANSLATE_NOOP("models", "Node lost"),
                                          QT_TRANSLATE_NOOP("models", "No controller")};
    return pick(kWords, kind);
}

QString label(model::IncidentPhaseKind kind) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("models", "Detect"),  QT_TRANSLATE_NOOP("models", "Decide"),
        QT_TRANSLATE_NOOP("models", "Re-form"), QT_TRANSLATE_NOOP("models", "Re-exchange"),
        QT_TRANSLATE_NOOP("models", "Restart"), QT_TRANSLATE_NOOP("models", "Init"),
        QT_TRANSLATE_NOOP("models", "Fetch"),   QT_TRANSLATE_NOOP("models", "Replay"),
        QT_TRANSLATE_NOOP("models", "Join")};
    return pick(kWords, kind);
}

QString label(model::FaultKind kind) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("models", "Kill a rank"),
                                          QT_TRANSLATE_NOOP("models", "Kill a replica"),
                                          QT_TRANSLATE_NOOP("models", "Hang"),
                                          QT_TRANSLATE_NOOP("models", "Slow down"),
                                          QT_TRANSLATE_NOOP("models", "Cut the network"),
                                          QT_TRANSLATE_NOOP("models", "Delay the network"),
                                          QT_TRANSLATE_NOOP("models", "Flip a gradient bit"),
                                          QT_TRANSLATE_NOOP("models", "NaN in a gradient"),
                                          QT_TRANSLATE_NOOP("models", "Flip a parameter bit"),
                                          QT_TRANSLATE_NOOP("models", "Fill the checkpoint disk"),
                                          QT_TRANSLATE_NOOP("models", "Kill a node")};
    return pick(kWords, kind);
}

QString label(model::ActionKind kind) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("models", "Drain"),
                                          QT_TRANSLATE_NOOP("models", "Cordon"),
                                          QT_TRANSLATE_NOOP("models", "Uncordon"),
                                          QT_TRANSLATE_NOOP("models", "Hold rejoin of"),
                                          QT_TRANSLATE_NOOP("models", "Release"),
                                          QT_TRANSLATE_NOOP("models", "Restart"),
                                          QT_TRANSLATE_NOOP("models", "Pause"),
                                          QT_TRANSLATE_NOOP("models", "Resume"),
                                          QT_TRANSLATE_NOOP("models", "Checkpoint now"),
                                          QT_TRANSLATE_NOOP("models", "Stop"),
                                          QT_TRANSLATE_NOOP("models", "Set policy")};
    return pick(kWords, kind);
}

QString label(model::Severity severity) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("models", "Info"), QT_TRANSLATE_NOOP("models", "Notice"),
        QT_TRANSLATE_NOOP("models", "Warning"), QT_TRANSLATE_NOOP("models", "Error")};
    return pick(kWords, severity);
}

QString label(model::CampaignOutcome outcome) {
    static constexpr std::array kWords = {
        QT_TRANSLATE_NOOP("models", "Passed"), QT_TRANSLATE_NOOP("models", "Failed"),
        QT_TRANSLATE_NOOP("models", "Aborted"), QT_TRANSLATE_NOOP("models", "Cut off")};
    return pick(kWords, outcome);
}

QString label(model::CampaignCheck check) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("models", "Faults injected"),
                                          QT_TRANSLATE_NOOP("models", "Invariants"),
                                          QT_TRANSLATE_NOOP("models", "State hashes"),
                                          QT_TRANSLATE_NOOP("models", "Data ledger"),
                                          QT_TRANSLATE_NOOP("models", "Effective time"),
                                          QT_TRANSLATE_NOOP("models", "Longest stall"),
                                          QT_TRANSLATE_NOOP("models", "Longest rejoin")};
    return pick(kWords, check);
}

QString label(model::VerdictState state) {
    static constexpr std::array kWords = {QT_TRANSLATE_NOOP("models", "Holds so far"),
                                          QT_TRANSLATE_NOOP("models", "Passed"),
                                          QT_TRANSLATE_NOOP("models", "Failed")};
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

QString replicaName(int32_t replica) {
    return replica < 0 ? tr("all") : QStringLiteral("r%1").arg(replica);
}

QString rankName(RankId rank) {
    return toQt(model::rankName(rank));
}

QString toQt(std::string_view text) {
    return QString::fromUtf8(text.data(), static_cast<qsizetype>(text.size()));
}

}  // namespace bulkhead::ui
