// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/cli.h"
#include "backend/model/json.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "backend/model/names.h"
#include "backend/model/rank_name.h"

namespace bulkhead::cli {
namespace {

void say(bool json, ExitCode code, const client::Failure& failure) {
    if (json) {
        const model::Json error{{"type", "error"},
                                {"exit_code", static_cast<int>(code)},
                                {"title", failure.title},
                                {"cause", failure.cause},
                                {"remedy", failure.remedy}};
        std::fprintf(stderr, "%s\n", model::dumpJson(error).c_str());
        return;
    }
    std::fprintf(stderr, "bulkheadctl: %s: %s / %s\n", failure.title.c_str(), failure.cause.c_str(),
                 failure.remedy.c_str());
}

/// Help and version are no errors; anything else is one line like every other failure.
int endOfParsing(CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
        app.exit(error);
        return kOk;
    }
    // The option itself may not have been reached.
    const bool json = std::any_of(argv, argv + argc,
                                  [](const char* word) { return std::string(word) == "--json"; });
    std::string verb;
    for (const CLI::App* chosen : app.get_subcommands()) verb = " " + chosen->get_name();
    std::string cause = error.what();
    std::replace(cause.begin(), cause.end(), '\n', ' ');
    say(json, kUsage,
        {client::FailureCode::kInvalid, "Cannot read the command line", cause + ".",
         "See bulkheadctl" + verb + " --help.", false});
    return kUsage;
}

}  // namespace

std::string defaultStateDir() {
    const char* state = std::getenv("XDG_STATE_HOME");
    if (state != nullptr && *state != '\0') return std::string(state) + "/bulkhead";
    const char* home = std::getenv("HOME");
    return std::string(home != nullptr ? home : "/tmp") + "/.local/state/bulkhead";
}

CLI::Validator within(double least, double most) {
    const std::string range = absl::StrCat(least, " to ", most);
    return CLI::Validator(
        [=](const std::string& text) -> std::string {
            double value = 0;
            const bool read = CLI::detail::lexical_cast(text, value);
            if (read && value >= least && value <= most) return {};
            return absl::StrCat("'", text, "', expected a number from ", range);
        },
        range);
}

CLI::Validator positive() {
    return CLI::Validator(
        [](const std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value > 0 && std::isfinite(value))
                return {};
            return absl::StrCat("'", text, "', expected a number above 0");
        },
        "POSITIVE");
}

CLI::Validator seedNumber() {
    return CLI::Validator(
        [](const std::string& text) -> std::string {
            uint64_t value = 0;
            const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
            if (digits && absl::SimpleAtoi(text, &value)) return {};
            return absl::StrCat("'", text, "', expected a whole number from 0 to ", UINT64_MAX);
        },
        "");
}

CLI::Validator replicaNumber() {
    return CLI::Validator(
        [](std::string& text) -> std::string {
            const std::optional<int32_t> replica = model::parseReplica(text);
            if (!replica) return absl::StrCat("'", text, "', expected a replica, such as 2 or r2");
            text = std::to_string(*replica);
            return {};
        },
        "");
}

CLI::Validator nodeName() {
    return CLI::Validator(
        [](const std::string& text) -> std::string {
            if (model::isFileName(text)) return {};
            return model::concat("expected ", model::kFileNameRule, ", found \"",
                                 model::printable(text), "\"");
        },
        "");
}

ExitCode exitCodeOf(client::FailureCode code) {
    switch (code) {
        case client::FailureCode::kUnreachable:
        case client::FailureCode::kTimeout:
            return kUnreachable;
        case client::FailureCode::kToken:
        case client::FailureCode::kVersion:
            return kToken;
        case client::FailureCode::kNotFound:
            return kNotFound;
        case client::FailureCode::kInvalid:
            return kInvalid;
        case client::FailureCode::kStale:
        case client::FailureCode::kRefused:
            return kRefused;
        case client::FailureCode::kCancelled:
            return kInterrupted;
        case client::FailureCode::kServer:
            break;
    }
    return kRunFailed;
}

int fail(const Cli& cli, const client::Failure& failure) {
    const ExitCode code = exitCodeOf(failure.code);
    say(cli.json, code, failure);
    return code;
}

int run(int argc, const char* const* argv) {
    Cli cli;
    CLI::App app{"Every verb of the Bulkhead console, for terminals and scripts.", "bulkheadctl"};
    app.set_version_flag("--version", std::string(BULKHEAD_VERSION));
    app.add_option(
           "-t,--target", cli.target,
           "daemon: unix:/path or host:port; or ip:port of each controller that may lead, with "
           "commas between")
        ->envname("BULKHEAD_TARGET");
    app.add_option("--token-file", cli.tokenFile, "token for a daemon on TCP")
        ->envname("BULKHEAD_TOKEN_FILE");
    app.add_option("--certs", cli.certs,
                   "folder with ca.pem, and cert.pem and key.pem of your own, for a daemon on TCP")
        ->envname("BULKHEAD_CERTS");
    app.add_flag("--insecure", cli.insecure, "send the token in plain text where there is no TLS");
    app.add_flag("--json", cli.json,
                 "one JSON value a line instead of text; errors too, on standard error");
    app.require_subcommand(1);
    app.fallthrough();
    app.footer(
        "Every verb also takes --target, --token-file, --certs, --insecure and --json.\n"
        "A job with a program of its own: bulkheadctl up [OPTIONS] -- PROGRAM ARGUMENTS.\n"
        "Exit codes: 0 done; 1 the run or campaign failed, or a ledger does not add up; 2 usage;\n"
        "3 no daemon answers; 4 refused, stale or not confirmed; 5 not found;\n"
        "6 a file or argument cannot be used; 7 token or version; 130 interrupted.");
    addUp(app, cli);
    addJobs(app, cli);
    addNodes(app, cli);
    addActions(app, cli);
    addFaults(app, cli);
    addCampaigns(app, cli);
    addRuns(app, cli);
    addIncidents(app, cli);
    addCompare(app, cli);
    addReplay(app, cli);
    addPlan(app, cli);
    addAccess(app, cli);
    addMetrics(app, cli);
    addSlurm(app, cli);
    addCompletion(app, cli);
    const char* const* end = std::find(argv + 1, argv + argc, std::string_view("--"));
    const int ours = static_cast<int>(end - argv);
    if (ours < argc) cli.command.assign(end + 1, argv + argc);
    try {
        app.parse(ours, argv);
        if (ours < argc && !app.got_subcommand("up") && !app.got_subcommand("start") &&
            !app.got_subcommand("slurm"))
            throw CLI::ExtrasError(
                {"-- is for up, start and slurm submit, before the program of a job"});
        if (ours < argc && cli.command.empty())
            throw CLI::ExtrasError({"-- expects a program and its arguments behind it"});
    } catch (const CLI::ParseError& e) {
        return endOfParsing(app, e, argc, argv);
    }
    if (cli.target.empty()) cli.target = "unix:" + defaultStateDir() + "/bulkhead.sock";
    return cli.chosen ? cli.chosen() : kUsage;
}

}  // namespace bulkhead::cli
