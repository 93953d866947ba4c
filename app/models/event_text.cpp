// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/event_text.h"

#include <QRegularExpression>
#include <QStringList>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/models/words.h"
#include "backend/model/command_text.h"
#include "backend/model/gpu_text.h"
#include "backend/model/ledger_audit.h"
#include "backend/model/units.h"

namespace bulkhead::ui {
namespace {

QString listOf(const std::vector<int32_t>& replicas) {
    QStringList names;
    for (const int32_t r : replicas) names << replicaName(r);
    return names.join(QStringLiteral(", "));
}

QString withWhy(const QString& text, const std::string& why) {
    return why.empty() ? text : text + QStringLiteral(": ") + toQt(why);
}

/// One overload per event; what is returned is kind, subject, text, replica.
struct Describe {
    EventText operator()(const model::RunStarted& e) const {
        return {tr("Run started"),
                {},
                tr("%1: %2 replicas \u00d7 %3 shards on %4")
                        .arg(toQt(e.spec.name))
                        .arg(e.spec.replicas)
                        .arg(e.spec.shards)
                        .arg(toQt(e.host)) +
                    (e.resumedFrom.empty() ? QString()
                                           : tr(", resumed from %1").arg(toQt(e.resumedFrom)))};
    }
    EventText operator()(const model::ModelDescribed& e) const {
        return {tr("Model"),
                {},
                tr("%1: %2 parameters, %3 layers, %4 experts in %5 layers")
                    .arg(toQt(e.model.name), formatCount(e.model.parameters))
                    .arg(e.model.layers)
                    .arg(e.model.experts)
                    .arg(e.model.moeLayers)};
    }
    EventText operator()(const model::LineageOpened& e) const {
        return {tr("Lineage"),
                {},
                withWhy(tr("lineage %1 from step %2").arg(e.lineage).arg(e.fromStep), e.why)};
    }
    EventText operator()(const model::JobPhaseChanged& e) const {
        return {tr("Job"), {}, withWhy(label(e.phase), e.why)};
    }
    EventText operator()(const model::NodeChanged& e) const {
        static const char* const kWords[] = {"up", "cordoned", "lost", "forgotten"};
        return {tr("Node"), toQt(e.node),
                withWhy(tr(kWords[static_cast<int>(e.state) % 4]), e.why)};
    }
    EventText operator()(const model::ReplicaChanged& e) const {
        return {tr("Replica"), replicaName(e.replica),
                withWhy(tr("%1, incarnation %2").arg(label(e.state)).arg(e.incarnation), e.why),
                e.replica};
    }
    EventText operator()(const model::RankStarted& e) const {
        return {tr("Rank started"), rankName(e.rank),
                tr("pid %1 on %2").arg(e.pid).arg(toQt(e.node)) +
                    (e.gpu ? tr(", GPU %1").arg(*e.gpu) : QString()),
                e.rank.replica};
    }
    EventText operator()(const model::RankExited& e) const {
        const QString how =
            e.signal != 0 ? tr("on signal %1").arg(e.signal) : tr("with code %1").arg(e.exitCode);
        return {tr("Rank exited"), rankName(e.rank),
                tr("pid %1 %2").arg(e.pid).arg(how) + (e.expected ? tr(", as asked") : QString()),
                e.rank.replica};
    }
    EventText operator()(const model::RankOutput& e) const {
        // A logger writes to standard error whatever its level: the level says how grave it is.
        return {tr("Output"), rankName(e.rank), outputText(e.line).text, e.rank.replica};
    }
    EventText operator()(const model::FleetSampled& e) const {
        return {tr("Sample"), {}, tr("%1 ranks").arg(e.ranks.size())};
    }
    EventText operator()(const model::QuorumDecided& e) const {
        return {tr("Quorum"),
                {},
                withWhy(tr("step %1, epoch %2: %3 contributors")
                            .arg(e.step)
                            .arg(e.epoch)
                            .arg(e.contributors.size()),
                        e.explanation)};
    }
    EventText operator()(const model::StepCommitted& e) const {
        return {tr("Step"),
                {},
                tr("step %1: loss %2, %3 contributors, %4, %5 tokens")
                        .arg(e.record.step)
                        .arg(formatNumber(e.loss, 3))
                        .arg(e.record.contributors.size())
                        .arg(formatMs(e.stepMs), formatCount(e.record.tokens)) +
                    (e.record.skip ? tr(", skipped: not finite") : QString())};
    }
    EventText operator()(const model::ExpertLoads& e) const {
        return {tr("Expert loads"), {}, tr("step %1").arg(e.step)};
    }
    EventText operator()(const model::StepRedone& e) const {
        return {tr("Redo"),
                {},
                withWhy(tr("step %1, attempt %2%3")
                            .arg(e.step)
                            .arg(e.attempt)
                            .arg(e.lost.empty() ? QString() : tr(" without ") + listOf(e.lost)),
                        e.why)};
    }
    EventText operator()(const model::EvidenceSeen& e) const {
        return {
            tr("Evidence"), e.shard < 0 ? replicaName(e.replica) : rankName({e.replica, e.shard}),
            withWhy(tr("%1 seen by %2").arg(label(e.kind), toQt(e.reporter)), e.detail), e.replica};
    }
    EventText operator()(const model::IncidentOpened& e) const {
        return {tr("Incident"), replicaName(e.replica),
                tr("#%1 %2").arg(e.incident).arg(toQt(e.title)), e.replica};
    }
    EventText operator()(const model::IncidentPhase& e) const {
        return {tr("Incident phase"),
                {},
                tr("#%1 %2 took %3")
                    .arg(e.incident)
                    .arg(label(e.phase), formatMs(static_cast<double>(e.endNs - e.beginNs) / 1e6))};
    }
    EventText operator()(const model::IncidentClosed& e) const {
        return {tr("Incident closed"),
                {},
                tr("#%1 %2; survivors stood still %3")
                    .arg(e.incident)
                    .arg(toQt(e.outcome), formatMs(e.survivorStallMs))};
    }
    EventText operator()(const model::CatchUpProgress& e) const {
        return {tr("Catch-up"), replicaName(e.replica),
                tr("%1 of %2, step %3")
                    .arg(formatBytes(e.bytesDone), formatBytes(e.bytesTotal))
                    .arg(e.step),
                e.replica};
    }
    EventText operator()(const model::FaultInjected& e) const {
        return {tr("Fault"), e.spec.replica < 0 ? toQt(e.spec.node) : replicaName(e.spec.replica),
                tr("#%1 %2").arg(e.fault).arg(toQt(model::describe(e.spec))), e.spec.replica};
    }
    EventText operator()(const model::FaultEnded& e) const {
        return {tr("Fault ended"), {}, tr("#%1 %2").arg(e.fault).arg(toQt(e.outcome))};
    }
    EventText operator()(const model::OperatorActed& e) const {
        return {tr("Operator"), toQt(e.by),
                tr("%1: %2").arg(toQt(model::describe(e.action)), toQt(e.outcome)),
                e.action.replica};
    }
    EventText operator()(const model::PoliciesChanged& e) const {
        return {tr("Policies"), {}, e.why.empty() ? tr("changed") : toQt(e.why)};
    }
    EventText operator()(const model::CheckpointWritten& e) const {
        return {tr("Checkpoint"), replicaName(e.replica),
                e.ok ? tr("step %1, %2 in %3").arg(e.step).arg(formatBytes(e.bytes), formatMs(e.ms))
                     : withWhy(tr("step %1 failed").arg(e.step), e.error),
                e.replica};
    }
    EventText operator()(const model::StepsSuspect& e) const {
        return {tr("Suspect steps"),
                {},
                withWhy(tr("after %1 up to %2").arg(e.first).arg(e.last), e.why)};
    }
    EventText operator()(const model::ParityDisputed& e) const {
        return {tr("Parity"), {}, toQt(model::disputeText(e.dispute))};
    }
    EventText operator()(const model::ParityPaced& e) const {
        return {tr("Parity"), {}, toQt(model::paceText(e))};
    }
    EventText operator()(const model::RangeQuarantined& e) const {
        return {tr("Quarantine"),
                {},
                withWhy(tr("domain %1, samples %2 to %3")
                            .arg(e.range.domain)
                            .arg(e.range.begin)
                            .arg(e.range.end),
                        e.why)};
    }
    EventText operator()(const model::InvariantBroken& e) const {
        return {tr("Invariant broken"), {}, withWhy(toQt(e.invariant), e.detail)};
    }
    EventText operator()(const model::LayoutChanged& e) const {
        return {
            tr("Layout"),
            {},
            withWhy(e.ok ? tr("layout %1, %2 moved").arg(e.layout).arg(formatBytes(e.bytesMoved))
                         : tr("layout %1 failed, the old one stays").arg(e.layout),
                    e.why)};
    }
    EventText operator()(const model::RoutingSampled& e) const {
        return {tr("Routing"),
                {},
                tr("step %1: %2 samples, %3 tokens to come")
                    .arg(e.step)
                    .arg(e.samples.size())
                    .arg(formatCount(e.tokensLeft))};
    }
    EventText operator()(const model::PlanProposed& e) const {
        return {tr("Plan proposed"),
                {},
                withWhy(tr("%1 experts move, %2 of copies remote")
                            .arg(e.expertsMoved)
                            .arg(formatNumber(100 * e.predictedRemote, 1) + tr(" %")),
                        e.why)};
    }
    EventText operator()(const model::GpuTroubled& e) const {
        return {tr("GPU trouble"), toQt(e.node),
                toQt(model::gpuName(e) + ": " + model::troubleText(e) + "; " + model::ranksText(e)),
                e.ranks.empty() ? -1 : e.ranks.front().replica};
    }
    EventText operator()(const model::ProgramSeen& e) const {
        const QString hash = toQt(e.path) + " " + toQt(e.sha256.substr(0, 12));
        return {e.before.empty() ? tr("Program") : tr("Program changed"), toQt(e.node),
                e.before.empty()
                    ? hash
                    : tr("%1; %2 at the start before").arg(hash, toQt(e.before.substr(0, 12))),
                e.rank.replica};
    }
    EventText operator()(const model::RunFinished& e) const {
        return {
            tr("Run finished"),
            {},
            withWhy(e.ok ? tr("well, at step %1").arg(e.step) : tr("badly, at step %1").arg(e.step),
                    e.why)};
    }
    EventText operator()(const model::CampaignStarted& e) const {
        return {tr("Campaign"), toQt(e.by),
                tr("#%1 %2: %3 faults within %4")
                    .arg(e.campaign)
                    .arg(toQt(e.name))
                    .arg(e.plan.size())
                    .arg(toQt(model::humanDuration(static_cast<double>(e.durationMs))))};
    }
    EventText operator()(const model::CampaignSkipped& e) const {
        return {tr("Fault skipped"),
                {},
                withWhy(tr("campaign #%1, fault %2").arg(e.campaign).arg(e.planned), e.why)};
    }
    EventText operator()(const model::CampaignEnded& e) const {
        return {tr("Campaign ended"),
                {},
                withWhy(tr("#%1 %2").arg(e.campaign).arg(label(e.outcome)), e.why)};
    }
};

}  // namespace

OutputText outputText(std::string_view line) {
    static const QRegularExpression pattern(
        QStringLiteral("^(?:\\d{4}-\\d\\d-\\d\\d )?\\d\\d:\\d\\d:\\d\\d\\.\\d{3} "
                       "(trace|debug|info|warning|error|critical) (.*)$"));
    const QString text = toQt(line);
    const QRegularExpressionMatch match = pattern.match(text);
    if (!match.hasMatch()) return {model::Severity::kInfo, text};
    const QString level = match.captured(1);
    const auto severity = level == u"warning"                         ? model::Severity::kWarning
                          : level == u"error" || level == u"critical" ? model::Severity::kError
                                                                      : model::Severity::kInfo;
    return {severity, match.captured(2)};
}

EventText eventText(const model::Event& event) {
    return std::visit(Describe{}, event.body);
}

EventClass classOf(std::string_view type) {
    for (const std::string_view gauge :
         {model::FleetSampled::kType, model::ExpertLoads::kType, model::RoutingSampled::kType,
          model::CatchUpProgress::kType})
        if (type == gauge) return EventClass::kGauge;
    for (const std::string_view routine :
         {model::StepCommitted::kType, model::QuorumDecided::kType, model::RankOutput::kType})
        if (type == routine) return EventClass::kRoutine;
    return EventClass::kNotable;
}

std::vector<std::string> typesForLog(bool withRoutine) {
    std::vector<std::string> types;
    for (const std::string_view type : model::eventTypes()) {
        const EventClass kind = classOf(type);
        if (kind == EventClass::kNotable || type == model::RankOutput::kType ||
            (withRoutine && kind == EventClass::kRoutine))
            types.emplace_back(type);
    }
    return types;
}

}  // namespace bulkhead::ui
