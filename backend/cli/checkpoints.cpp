// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/cli/cli.h"
#include "backend/common/clock.h"
#include "backend/interchange/find_checkpoint.h"
#include "backend/interchange/transfer.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;
using interchange::Form;

struct ExportArguments {
    std::string where = "latest";
    std::string form;
    std::optional<uint64_t> step;
    std::optional<int32_t> shard;
    std::string out;
    bool optimizer = false;
    bool force = false;
};

struct ImportArguments {
    std::string file, like, out;
    std::optional<uint64_t> step;
    bool freshOptimizer = false;
    bool force = false;
};

int refuse(const Cli& cli, const std::string& title, const absl::Status& status) {
    auto code = client::FailureCode::kInvalid;
    if (absl::IsNotFound(status)) code = client::FailureCode::kNotFound;
    if (absl::IsAlreadyExists(status)) code = client::FailureCode::kRefused;
    // The message ends with its remedy.
    const std::string words(status.message());
    const size_t cut = words.rfind("; ");
    std::string remedy =
        cut == std::string::npos ? "See bulkheadctl checkpoint --help" : words.substr(cut + 2);
    if (!remedy.empty()) remedy[0] = static_cast<char>(std::toupper(remedy[0]));
    return fail(cli, {code, title, words.substr(0, cut) + ".", remedy + ".", false});
}

/// Folders that may hold the folder of a run.
std::vector<std::string> jobsFolders(const Cli& cli) {
    if (!cli.jobsDir.empty()) return {cli.jobsDir};
    if (cli.file.empty()) return {defaultStateDir() + "/jobs"};
    return {cli.file + ".state/jobs", (fs::absolute(cli.file).parent_path() / "jobs").string()};
}

int exportTensors(const Cli& cli, const ExportArguments& arguments) {
    constexpr const char* kTitle = "Cannot export the checkpoint";
    const auto manifest =
        interchange::findManifest(diskFiles(), arguments.where, arguments.step, jobsFolders(cli));
    if (!manifest.ok()) return refuse(cli, kTitle, manifest.status());
    interchange::ExportOrder order;
    order.manifest = *manifest;
    order.form = arguments.form == "torch" ? Form::kTorch : Form::kSafetensors;
    order.optimizer = arguments.optimizer;
    order.shard = arguments.shard;
    order.replace = arguments.force;
    order.out = arguments.out;
    if (order.out.empty()) {
        const auto name = interchange::exportName(diskFiles(), order);
        if (!name.ok()) return refuse(cli, kTitle, name.status());
        order.out = *name;
    }
    std::error_code none;
    const fs::path source = fs::path(order.manifest).parent_path();
    const fs::path behindLinks = fs::weakly_canonical(order.out, none);
    if (fs::equivalent(behindLinks.parent_path(), source, none))
        return refuse(cli, kTitle,
                      absl::InvalidArgumentError(absl::StrCat(
                          order.out, " is where the export is read from; choose another place")));
    const auto done = interchange::exportCheckpoint(diskFiles(), order);
    if (!done.ok()) return refuse(cli, kTitle, done.status());
    if (cli.json)
        std::printf("%s\n", model::dumpJson({{"type", "exported"},
                                             {"file", order.out},
                                             {"checkpoint", order.manifest},
                                             {"run", done->run},
                                             {"step", done->step},
                                             {"tensors", done->tensors},
                                             {"bytes", done->bytes}})
                                .c_str());
    else
        std::printf("%s: %llu tensors of %s after step %llu, %llu bytes\n", order.out.c_str(),
                    static_cast<unsigned long long>(done->tensors), done->run.c_str(),
                    static_cast<unsigned long long>(done->step),
                    static_cast<unsigned long long>(done->bytes));
    return kOk;
}

int importTensors(const Cli& cli, const ImportArguments& arguments) {
    constexpr const char* kTitle = "Cannot import the checkpoint";
    interchange::ImportOrder order;
    order.file = arguments.file;
    order.freshOptimizer = arguments.freshOptimizer;
    order.replace = arguments.force;
    order.unixNs = SystemClock().unixNs();
    if (!arguments.like.empty()) {
        const auto like = interchange::findManifest(diskFiles(), arguments.like, arguments.step,
                                                    jobsFolders(cli));
        if (!like.ok()) return refuse(cli, kTitle, like.status());
        order.like = *like;
    }
    const fs::path file(arguments.file);
    std::error_code error;
    order.out = fs::weakly_canonical(
                    fs::absolute(arguments.out.empty() ? file.stem().string() + ".checkpoint"
                                                       : arguments.out),
                    error)
                    .string();
    if (error)
        return refuse(cli, kTitle,
                      absl::InvalidArgumentError(absl::StrCat(arguments.out, ": ", error.message(),
                                                              "; choose another place")));
    const auto done = interchange::importCheckpoint(diskFiles(), order);
    if (!done.ok()) return refuse(cli, kTitle, done.status());
    if (cli.json)
        std::printf("%s\n", model::dumpJson({{"type", "imported"},
                                             {"manifest", done->manifest},
                                             {"step", done->step},
                                             {"shards", done->shards},
                                             {"state_hashes", done->hashes},
                                             {"optimizer", done->optimizer},
                                             {"changed", !done->changed.empty()}})
                                .c_str());
    else
        std::printf(
            "%s: step %llu, %u shards, state hash %s, the optimizer's state %s\n"
            "go on from it: bulkheadctl up [JOB] --shards %u --resume %s\n",
            done->manifest.c_str(), static_cast<unsigned long long>(done->step), done->shards,
            absl::StrJoin(done->hashes, ",").c_str(), done->optimizer.c_str(), done->shards,
            done->manifest.c_str());
    if (!done->changed.empty())
        std::fprintf(stderr,
                     "%s: its tensors are not those of the state that it names (hash %s): somebody "
                     "changed them, or the file is damaged; if nobody did, export it again\n",
                     order.file.c_str(), done->changed.c_str());
    return kOk;
}

void addPlaces(CLI::App& verb, Cli& cli) {
    verb.add_option("-f,--file", cli.file, "run file beside which the run's folder lies");
    verb.add_option("--jobs", cli.jobsDir,
                    "folder of the run's folder [FILE.state/jobs or jobs beside FILE; without FILE "
                    "that of your own daemon]");
}

}  // namespace

void addCheckpointFiles(CLI::App& checkpoint, Cli& cli) {
    auto out = std::make_shared<ExportArguments>();
    CLI::App* verb = checkpoint.add_subcommand(
        "export", "The named tensors of a checkpoint as one file that others read");
    verb->add_option("from", out->where,
                     "run id, or latest; or the folder of a checkpoint, or of a run")
        ->capture_default_str();
    verb->add_option("--to", out->form,
                     "safetensors, or torch: a file for torch.load(weights_only=True)")
        ->required()
        ->check(CLI::IsMember({"safetensors", "torch"}));
    verb->add_option("--step", out->step, "of this step [the newest]");
    verb->add_flag("--optimizer", out->optimizer,
                   "the optimizer's and the scheduler's state too; such a safetensors file can be "
                   "imported without --like");
    verb->add_option("-o,--out", out->out, "file to write [RUN-stepN.safetensors, .pt]");
    verb->add_option("--shard", out->shard,
                     "only what this shard holds, as it holds it [all, put together]")
        ->check(CLI::NonNegativeNumber);
    verb->add_flag("--force", out->force, "replace the file if there is one");
    addPlaces(*verb, cli);
    verb->callback([&cli, out] { cli.chosen = [&cli, out] { return exportTensors(cli, *out); }; });

    auto in = std::make_shared<ImportArguments>();
    verb = checkpoint.add_subcommand(
        "import", "A safetensors file as a checkpoint that a job can begin from (--resume)");
    verb->add_option("file", in->file, "safetensors file")->required();
    verb->add_option("--like", in->like,
                     "checkpoint that has what the file lacks (job, step, optimizer): run id, "
                     "latest, or folder [the file has it, if it was exported with --optimizer]");
    verb->add_option("--step", in->step, "of --like: of this step [the newest]");
    verb->add_flag("--fresh-optimizer", in->freshOptimizer,
                   "begin with nothing of what the optimizer keeps of each parameter");
    verb->add_option("-o,--out", in->out, "folder to make [NAME.checkpoint]");
    verb->add_flag("--force", in->force, "replace the folder if an import made it");
    addPlaces(*verb, cli);
    verb->callback([&cli, in] { cli.chosen = [&cli, in] { return importTensors(cli, *in); }; });
}

}  // namespace bulkhead::cli
