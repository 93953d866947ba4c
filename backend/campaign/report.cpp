// SPDX-License-Identifier: Apache-2.0
#include "backend/campaign/report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <vector>

#include "backend/campaign/judge.h"
#include "backend/model/command_text.h"
#include "backend/model/incident_phases.h"
#include "backend/model/names.h"
#include "backend/model/units.h"

namespace bulkhead::campaign {
namespace {

using model::concat;
using model::humanDuration;

std::string escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '<')
            out += "&lt;";
        else if (c == '>')
            out += "&gt;";
        else if (c == '&')
            out += "&amp;";
        else if (c == '"')
            out += "&quot;";
        else if (static_cast<unsigned char>(c) >= 0x20 || c == '\n')
            out += c;
    }
    return out;
}

template <class... Arguments>
std::string printed(const char* format, Arguments... arguments) {
    char text[256];
    std::snprintf(text, sizeof text, format, arguments...);
    return text;
}

std::string element(std::string_view tag, std::string_view kind, std::string_view content) {
    return concat("<", tag, kind.empty() ? "" : " class=\"", kind, kind.empty() ? "" : "\"", ">",
                  content, "</", tag, ">");
}
std::string cell(std::string_view kind, std::string_view text) {
    return element("td", kind, escaped(text));
}

std::string utc(int64_t unixNs) {
    const std::time_t seconds = static_cast<std::time_t>(unixNs / 1'000'000'000);
    std::tm parts{};
    if (::gmtime_r(&seconds, &parts) == nullptr) return "-";
    char text[64];
    return std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts) > 0 ? text : "-";
}

/// "2:05", minutes and seconds into the campaign.
std::string clock(double ms) {
    const auto seconds = static_cast<long long>(std::max(0.0, ms) / 1000);
    return printed("%lld:%02lld", seconds / 60, seconds % 60);
}

struct Words {
    std::string_view text;
    std::string_view kind;
};

Words wordsOf(const model::CampaignView& campaign) {
    if (!campaign.ended) return {"in progress", "warn"};
    switch (campaign.ended->outcome) {
        case model::CampaignOutcome::kPassed:
            return {"passed", "good"};
        case model::CampaignOutcome::kFailed:
            return {"failed", "bad"};
        case model::CampaignOutcome::kAborted:
            return {"aborted", "warn"};
        case model::CampaignOutcome::kCutOff:
            return {"cut off", "warn"};
    }
    return {"unknown", "warn"};
}

Words wordsOf(model::VerdictState state) {
    switch (state) {
        case model::VerdictState::kPassed:
            return {"passed", "good"};
        case model::VerdictState::kFailed:
            return {"failed", "bad"};
        case model::VerdictState::kOpen:
            break;
    }
    return {"open", "soft"};
}

std::string_view nameOf(model::CampaignCheck check) {
    constexpr std::array<std::string_view, 7> kNames = {
        "Faults injected",         "Invariants",    "State hashes",  "Data ledger",
        "Effective training time", "Longest stall", "Longest rejoin"};
    return kNames[std::min(static_cast<size_t>(check), kNames.size() - 1)];
}

class Report {
  public:
    Report(const model::RunState& state, const model::CampaignView& campaign, int64_t nowNs)
        : state_(state),
          campaign_(campaign),
          endNs_(campaign.endedNs != 0 ? campaign.endedNs : nowNs),
          progress_(progressOf(state, campaign, nowNs)),
          incidents_(incidentsOf(state, campaign)),
          fates_(fatesOf(state, campaign)),
          verdicts_(judge(state, campaign, nowNs)) {}

    std::string whole(const std::string& run) const {
        const std::string name = escaped(campaign_.started.name);
        return concat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
                      "<meta name=\"viewport\" content=\"width=device-width\"><title>", name,
                      " on ", escaped(run), "</title><style>", kReportStyle,
                      "</style></head><body><main>", head(name, run), tiles(), verdicts(),
                      timeline(), incidents(), faults(),
                      "<footer>Bulkhead fault campaign. Steps count once; a stall is what the "
                      "survivors of a loss waited, a rejoin lasts from the loss to the first "
                      "commit with the replica again.</footer></main></body></html>\n");
    }

  private:
    std::string head(const std::string& name, const std::string& run) const {
        const Words outcome = wordsOf(campaign_);
        const model::CampaignStarted& c = campaign_.started;
        std::string out = concat("<header><h1>", name, "</h1><span class=\"badge ", outcome.kind,
                                 "\">", outcome.text, "</span></header>");
        if (campaign_.ended && !campaign_.ended->why.empty())
            out += element("p", "", escaped(campaign_.ended->why));
        if (!c.about.empty()) out += element("p", "", escaped(c.about));
        return out + element("p", "",
                             concat("Run ", escaped(run), ", ", state_.spec.replicas,
                                    " replicas \u00d7 ", state_.spec.shards, " shards on ",
                                    escaped(state_.host), ", ", utc(campaign_.startedNs), ", took ",
                                    humanDuration(progress_.elapsedMs), ", seed ", c.seed, ", by ",
                                    escaped(c.by), "."));
    }

    static std::string tile(std::string_view figure, std::string_view words) {
        return concat("<div class=\"tile\"><b>", figure, "</b><span>", words, "</span></div>");
    }

    std::string tiles() const {
        double stall = 0;
        double rejoin = 0;
        for (const model::IncidentView* i : incidents_) {
            stall = std::max(stall, i->survivorStallMs);
            rejoin = std::max(rejoin, i->rejoinMs);
        }
        return concat(
            "<div class=\"tiles\">",
            tile(printed("%.1f %%", progress_.effectiveTime * 100), "effective training time"),
            tile(concat(progress_.injected, " of ", progress_.planned), "faults injected"),
            tile(concat(incidents_.size()), "incidents"),
            tile(stall > 0 ? humanDuration(stall) : "none", "longest stall"),
            tile(rejoin > 0 ? humanDuration(rejoin) : "none", "longest rejoin"), "</div>");
    }

    std::string verdicts() const {
        std::string rows;
        for (const model::CampaignVerdict& v : verdicts_) {
            const Words words = wordsOf(v.state);
            rows += concat("<tr>", cell("s", nameOf(v.check)), cell(words.kind, words.text),
                           cell("", v.words), "</tr>");
        }
        return concat("<section><h2>Verdict</h2><table><tr><th>Criterion</th><th>Verdict</th>",
                      "<th>Measured</th></tr>", rows, "</table></section>");
    }

    double xOf(int64_t ns) const {
        const double wall = std::max(1.0, model::durationMs(campaign_.startedNs, endNs_));
        return kLeft + (kRight - kLeft) * model::durationMs(campaign_.startedNs, ns) / wall;
    }

    /// Contributors of each commit as a stair, faults as marks above it.
    std::string timeline() const {
        const double replicas = std::max(1u, state_.spec.replicas);
        const auto yOf = [&](double n) { return kBottom - (kBottom - kTop) * n / replicas; };
        std::string svg = printed("<svg viewBox=\"0 0 1000 190\" role=\"img\" aria-label=\"%s\">",
                                  "Contributors over time, with the faults");
        for (uint32_t n = 0; n <= state_.spec.replicas; n += state_.spec.replicas > 8 ? 4 : 1)
            svg += printed(
                "<line class=\"grid\" x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%u</text>",
                kLeft, kRight, yOf(n), yOf(n), kLeft - 8, yOf(n) + 4, n);
        svg += stair(yOf) + marks();
        const double wall = model::durationMs(campaign_.startedNs, endNs_);
        for (int i = 0; i <= 6; ++i)
            svg += printed("<text x=\"%.1f\" y=\"186\" text-anchor=\"%s\">%s</text>",
                           kLeft + (kRight - kLeft) * i / 6.0,
                           i == 0   ? "start"
                           : i == 6 ? "end"
                                    : "middle",
                           clock(wall * i / 6.0).c_str());
        return concat("<section><h2>Contributors and faults</h2>", svg,
                      "</svg><p class=\"key\">Red marks: faults that took effect. Dashed: skipped. "
                      "Minutes:seconds since the begin.</p></section>");
    }

    template <class YOf>
    std::string stair(const YOf& yOf) const {
        std::string path;
        uint32_t last = UINT32_MAX;
        double x = kLeft;
        for (const model::StepPoint& p : state_.steps) {
            if (p.timeNs < campaign_.startedNs || p.timeNs > endNs_) continue;
            x = xOf(p.timeNs);
            if (p.contributors == last) continue;
            if (last == UINT32_MAX)
                path = printed("M%.1f %.1fV%.1f", kLeft, kBottom, yOf(p.contributors));
            else
                path += printed("H%.1fV%.1f", x, yOf(p.contributors));
            last = p.contributors;
        }
        if (path.empty()) return "";
        return concat("<path class=\"step\" d=\"", path, printed("H%.1fV%.1fZ", x, kBottom),
                      "\"/>");
    }

    std::string marks() const {
        std::string out;
        for (const FaultFate& fate : fates_) {
            if (fate.fault == nullptr && fate.skipped == nullptr) continue;
            const bool hit = fate.fault != nullptr;
            const double x = xOf(hit ? fate.fault->injectedNs : fate.skipped->timeNs);
            out += printed("<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"4\" y2=\"20\"><title>",
                           hit ? "mark" : "held", x, x) +
                   escaped(model::describe(fate.spec)) + "</title></line>";
        }
        return out;
    }

    static std::string bars(const model::IncidentView& incident) {
        double whole = 0;
        for (const model::PhaseView& p : incident.phases) whole += p.ms();
        if (!(whole > 0)) return "";
        std::string out = "<div class=\"bar\">";
        for (const model::PhaseView& p : incident.phases) {
            if (!(p.ms() > 0)) continue;
            const bool survivors =
                model::survivorsStood(incident) && model::isSurvivorPhase(p.phase);
            out += printed("<i class=\"%s\" style=\"width:%.2f%%\" title=\"%s %s\"></i>",
                           survivors ? "survivor" : "own", 100 * p.ms() / whole,
                           std::string(enumName(p.phase)).c_str(), humanDuration(p.ms()).c_str());
        }
        return out + "</div>";
    }

    static std::string phasesOf(const model::IncidentView& incident) {
        std::string out;
        for (const model::PhaseView& p : incident.phases)
            out += concat(out.empty() ? "" : ", ", enumName(p.phase), " ", humanDuration(p.ms()));
        return out;
    }

    std::string incidents() const {
        if (incidents_.empty())
            return "<section><h2>Incidents</h2><p>Nobody was lost.</p></section>";
        std::string rows;
        for (const model::IncidentView* i : incidents_)
            rows +=
                concat("<tr>", cell("n", concat(i->incident)),
                       cell("n", clock(model::durationMs(campaign_.startedNs, i->openedNs))),
                       "<td>", escaped(i->title), bars(*i), "<span class=\"soft\">",
                       escaped(phasesOf(*i)), "</span></td>",
                       cell("n", i->survivorStallMs > 0 ? humanDuration(i->survivorStallMs) : "-"),
                       cell("n", i->rejoinMs > 0 ? humanDuration(i->rejoinMs) : "-"),
                       cell("", i->closedNs != 0 ? i->outcome : "open"), "</tr>");
        return concat(
            "<section><h2>Incidents</h2><table><tr><th class=\"n\">#</th><th class=\"n\">"
            "At</th><th>What, and its phases</th><th class=\"n\">Stall</th>"
            "<th class=\"n\">Rejoin</th><th>Outcome</th></tr>",
            rows,
            "</table><p class=\"key\"><i class=\"survivor\"></i>survivors wait<i "
            "class=\"own\"></i>the lost replica returns</p></section>");
    }

    std::string faults() const {
        std::string rows;
        for (const FaultFate& fate : fates_) {
            std::string what = "to come";
            std::string_view kind = "soft";
            if (fate.fault != nullptr) {
                what = fate.fault->endedNs == 0 ? "acting" : fate.fault->outcome;
                kind = "";
            } else if (fate.skipped != nullptr) {
                what = concat("skipped: ", fate.skipped->why);
            } else if (campaign_.ended) {
                what = "not injected";
            }
            std::string of;
            if (fate.fault != nullptr)
                for (const uint64_t id : fate.fault->incidents)
                    of += concat(of.empty() ? "" : ", ", id);
            rows += concat("<tr>", cell("n", concat(fate.planned)),
                           cell("n", clock(static_cast<double>(fate.atMs))),
                           cell("", model::describe(fate.spec)), cell(kind, what),
                           cell("n", of.empty() ? "-" : of), "</tr>");
        }
        return concat("<section><h2>Faults</h2><table><tr><th class=\"n\">#</th>",
                      "<th class=\"n\">Planned at</th><th>What</th><th>What came of it</th>",
                      "<th class=\"n\">Incident</th></tr>", rows, "</table></section>");
    }

    static constexpr double kLeft = 28;
    static constexpr double kRight = 992;
    static constexpr double kTop = 28;
    static constexpr double kBottom = 168;

    const model::RunState& state_;
    const model::CampaignView& campaign_;
    int64_t endNs_;
    Progress progress_;
    std::vector<const model::IncidentView*> incidents_;
    std::vector<FaultFate> fates_;
    std::vector<model::CampaignVerdict> verdicts_;
};

}  // namespace

std::string reportHtml(const model::RunState& state, const model::CampaignView& campaign,
                       const std::string& run, int64_t nowNs) {
    return Report(state, campaign, nowNs).whole(run);
}

}  // namespace bulkhead::campaign
