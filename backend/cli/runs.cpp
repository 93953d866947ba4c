// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>

#include "absl/strings/str_format.h"
#include "backend/cli/cli.h"
#include "backend/cli/session.h"
#include "backend/cli/text.h"
#include "backend/common/output_file.h"
#include "backend/model/event_json.h"

namespace bulkhead::cli {
namespace {

using client::ExportFormat;
using client::ExportRequest;
using client::ExportWhat;

int listRuns(const Cli& cli, const std::string& text) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto runs = session.value()->await<std::vector<model::RunInfo>>(
        [&](client::Client& c, auto reply) { c.listRuns(text, std::move(reply)); });
    if (!runs.ok()) return fail(cli, runs.failure());
    std::vector<std::vector<std::string>> rows{
        {"RUN", "STARTED", "PHASE", "STEPS", "REPLICAS", "INCIDENTS", "FAULTS", "LOSS"}};
    for (const model::RunInfo& run : runs.value()) {
        if (cli.json) {
            std::printf("%s\n", model::toJsonText(run).c_str());
            continue;
        }
        char loss[32] = "-";
        if (run.lastLoss) std::snprintf(loss, sizeof loss, "%.4f", *run.lastLoss);
        rows.push_back({run.id, dateTime(run.startedNs), run.phase, std::to_string(run.steps),
                        std::to_string(run.replicas) + "x" + std::to_string(run.shards),
                        std::to_string(run.incidents), std::to_string(run.faults), loss});
    }
    if (!cli.json) std::printf("%s", rows.size() > 1 ? table(rows).c_str() : "no runs\n");
    return kOk;
}

int show(const Cli& cli, const std::string& run) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto state = session.value()->await<client::StatePtr>(
        [&](client::Client& c, auto reply) { c.getState(run, 0, std::move(reply)); });
    if (!state.ok()) return fail(cli, state.failure());
    std::printf("%s", cli.json ? (model::toJsonText(*state.value()) + "\n").c_str()
                               : stateText(*state.value()).c_str());
    return kOk;
}

int events(const Cli& cli, model::EventQuery query, uint64_t limit) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const uint64_t atOnce = query.limit;  // small enough for the deadline on a busy machine
    for (uint64_t left = limit; left > 0;) {
        query.limit = static_cast<uint32_t>(std::min(left, atOnce));
        const auto page = session.value()->await<model::EventPage>(
            [&](client::Client& c, auto reply) { c.readEvents(query, std::move(reply)); });
        if (!page.ok()) return fail(cli, page.failure());
        for (const model::Event& event : page.value().events)
            std::printf("%s\n", (cli.json ? model::toJsonText(event) : eventLine(event)).c_str());
        left -= page.value().events.size();
        if (page.value().nextSeq == 0 || page.value().events.empty()) break;
        (query.newestFirst ? query.toSeq : query.fromSeq) = page.value().nextSeq;
    }
    return kOk;
}

/// Collects an export into a stream; the pieces come on the client's thread.
int collect(const Cli& cli, const ExportRequest& request, std::ostream& out) {
    std::optional<client::Result<client::Done>> done;
    {
        auto session = Session::open(cli);
        if (!session.ok()) return fail(cli, session.failure());
        const Interrupts interrupts;
        done = session.value()->awaitUnless<client::Done>(
            interrupts, [&](client::Client& c, auto reply) {
                c.exportRun(
                    request, [&out](std::string piece) { out << piece; }, std::move(reply));
            });
    }  // no piece comes any more
    out.flush();
    if (!done) return kInterrupted;
    return done->ok() ? kOk : fail(cli, done->failure());
}

int cannotWrite(const Cli& cli, std::string cause) {
    return fail(cli, {client::FailureCode::kInvalid, "Cannot write the export", std::move(cause),
                      "Choose another place with -o.", false});
}

int exportToOutput(const Cli& cli, const ExportRequest& request) {
    const int code = collect(cli, request, std::cout);
    if (code != kOk || std::cout) return code;
    return cannotWrite(cli, "The disk is full, or the reader of the pipe went away.");
}

int exportRun(const Cli& cli, const ExportRequest& request, const std::string& path) {
    if (path.empty() || path == "-") return exportToOutput(cli, request);
    const auto file = OutputFile::create(path, true);
    if (!file.ok()) return cannotWrite(cli, std::string(file.status().message()));
    OutputStream out(**file);
    const int code = collect(cli, request, out);
    if (code == kInterrupted)
        std::fprintf(stderr, "bulkheadctl: Interrupted: %s is as it was before.\n", path.c_str());
    if (code != kOk) return code;
    absl::Status written = out.status();
    if (written.ok()) written = (*file)->publish();
    return written.ok() ? kOk : cannotWrite(cli, std::string(written.message()));
}

std::string shortNumber(const model::Json& row, const char* key, const char* format) {
    char text[64];
    std::snprintf(text, sizeof text, format, row.value(key, 0.0));
    return text;
}

/// Share of the token copies sent to experts that left their shard; "-": there are none.
std::string remoteShare(const model::Json& row) {
    const double copies = row.value("copies", 0.0);
    return copies > 0 ? absl::StrFormat("%.1f %%", row.value("remote_copies", 0.0) * 100 / copies)
                      : "-";
}

std::string plannedShare(const model::Json& row) {
    const double share = row.value("predicted_remote", -1.0);
    return share >= 0 ? absl::StrFormat("%.1f %%", share * 100) : "-";
}

std::string allToAll(const model::Json& row) {
    const double bytes = row.value("all_to_all_bytes", 0.0);
    return bytes > 0 ? absl::StrFormat("%.3f", bytes / 1e6) : "-";
}

int ledger(const Cli& cli, ExportRequest request) {
    request.what = ExportWhat::kLedger;
    request.format = ExportFormat::kJsonLines;
    if (cli.json) return exportToOutput(cli, request);
    std::stringstream text;
    if (const int code = collect(cli, request, text); code != kOk) return code;
    std::vector<std::vector<std::string>> rows{
        {"STEP", "EPOCH", "ATTEMPT", "REPLICAS", "SAMPLES", "LOSS", "GRAD", "STEP MS",
         "EXCHANGE MS", "TOKENS/S", "REMOTE", "PLANNED", "ALL-TO-ALL MB", "HASHES"}};
    for (std::string line; std::getline(text, line);) {
        const auto row = model::parseJson(line);
        if (!row.ok() || !row->is_object()) continue;
        rows.push_back(
            {shortNumber(*row, "step", "%.0f"), shortNumber(*row, "epoch", "%.0f"),
             shortNumber(*row, "attempt", "%.0f"), row->value("members", std::string()),
             shortNumber(*row, "samples", "%.0f"), shortNumber(*row, "loss", "%.4f"),
             shortNumber(*row, "grad_norm", "%.3f"), shortNumber(*row, "step_ms", "%.0f"),
             shortNumber(*row, "exchange_ms", "%.1f"),
             shortNumber(*row, "tokens_per_second", "%.0f"), remoteShare(*row), plannedShare(*row),
             allToAll(*row), row->value("hashes", std::string()).substr(0, 33)});
    }
    std::printf("%s", table(rows).c_str());
    return kOk;
}

int checkLedger(const Cli& cli, const std::string& run) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto report = session.value()->checkLedger(run);
    if (!report.ok()) return fail(cli, report.failure());
    const model::LedgerReport& ledger = report.value();
    if (cli.json) {
        std::printf("%s\n", model::toJsonText(ledger).c_str());
    } else {
        for (const std::string& line : ledger.parity) std::printf("parity: %s\n", line.c_str());
        std::printf("%s%s\n", findingsText(ledger).c_str(), model::ledgerText(ledger).c_str());
    }
    return ledger.ok ? kOk : kRunFailed;
}

/// Every reading verb can read a file instead of asking a daemon.
CLI::App* addReader(CLI::App& app, Cli& cli, const char* name, const char* help) {
    CLI::App* verb = app.add_subcommand(name, help);
    verb->add_option("-f,--file", cli.file, "read this run file instead of asking a daemon");
    return verb;
}

void addEvents(CLI::App& app, Cli& cli) {
    auto query = std::make_shared<model::EventQuery>();
    auto severity = std::make_shared<std::string>("info");
    auto limit = std::make_shared<uint64_t>(UINT64_MAX);
    query->run = "latest";
    CLI::App* verb = addReader(app, cli, "events", "The events of a run");
    verb->add_option("run", query->run, "id, or latest")->capture_default_str();
    verb->add_option("--type", query->types, "only of these types, e.g. incident_opened")
        ->delimiter(',');
    verb->add_option("--severity", *severity, "at least")
        ->check(CLI::IsMember({"info", "notice", "warning", "error"}))
        ->capture_default_str();
    verb->add_option("--replica", query->replica, "that name this replica, as 2 or r2")
        ->transform(replicaNumber());
    verb->add_option("--text", query->text, "that contain this, or name a rank such as r2s1");
    verb->add_option("--from", query->fromSeq, "from this sequence number");
    verb->add_option("--to", query->toSeq, "to this sequence number, inclusive");
    verb->add_flag("--newest", query->newestFirst, "newest first");
    verb->add_option("--limit", *limit, "at most so many");
    verb->callback([&cli, query, severity, limit] {
        query->minSeverity = enumFromName<model::Severity>(*severity).value();
        cli.chosen = [&cli, query, limit] { return events(cli, *query, *limit); };
    });
}

void addExports(CLI::App& app, Cli& cli) {
    auto request = std::make_shared<ExportRequest>();
    request->run = "latest";
    CLI::App* verb = addReader(app, cli, "ledger", "The steps of a run, one line each");
    verb->add_option("run", request->run, "id, or latest")->capture_default_str();
    verb->add_option("--from", request->fromStep, "first step");
    verb->add_option("--to", request->toStep, "last step");
    auto check = std::make_shared<bool>(false);
    verb->add_flag("--check", *check,
                   "verify it instead: every step, its chain, every sample once, parity");
    verb->add_option("--jobs", cli.jobsDir,
                     "with --file and --check: the folder of the run's folder with its commit log "
                     "[FILE.state/jobs, or jobs beside FILE]");
    verb->callback([&cli, request, check] {
        cli.chosen = [&cli, request, check] {
            return *check ? checkLedger(cli, request->run) : ledger(cli, *request);
        };
    });

    auto exported = std::make_shared<ExportRequest>();
    auto what = std::make_shared<std::string>("ledger");
    auto format = std::make_shared<std::string>();
    auto file = std::make_shared<std::string>();
    exported->run = "latest";
    verb = addReader(app, cli, "export", "A run's ledger or events as a file");
    verb->add_option("run", exported->run, "id, or latest")->capture_default_str();
    verb->add_option("--what", *what, "ledger or events")
        ->check(CLI::IsMember({"ledger", "events"}))
        ->capture_default_str();
    verb->add_option("--format", *format, "csv or jsonl [csv for the ledger, jsonl for events]")
        ->check(CLI::IsMember({"csv", "jsonl"}));
    verb->add_option("-o,--output", *file, "file [standard output]");
    verb->callback([&cli, exported, what, format, file] {
        exported->what = *what == "events" ? ExportWhat::kEvents : ExportWhat::kLedger;
        const bool csv = format->empty() ? *what == "ledger" : *format == "csv";
        exported->format = csv ? ExportFormat::kCsv : ExportFormat::kJsonLines;
        cli.chosen = [&cli, exported, file] { return exportRun(cli, *exported, *file); };
    });
}

}  // namespace

void addRuns(CLI::App& app, Cli& cli) {
    auto text = std::make_shared<std::string>();
    CLI::App* verb = addReader(app, cli, "runs", "List the runs of a history file");
    verb->add_option("text", *text, "only those that contain this");
    verb->callback([&cli, text] { cli.chosen = [&cli, text] { return listRuns(cli, *text); }; });

    auto run = std::make_shared<std::string>("latest");
    verb = addReader(app, cli, "show", "A run as it was at its end");
    verb->add_option("run", *run, "id, or latest")->capture_default_str();
    verb->callback([&cli, run] { cli.chosen = [&cli, run] { return show(cli, *run); }; });

    addEvents(app, cli);
    addExports(app, cli);
}

}  // namespace bulkhead::cli
