// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/job_options.h"

#include <CLI/CLI.hpp>

namespace bulkhead::cli {

namespace {

/// Empty, or what is wrong with the text of an option that is a whole number.
std::string wholeNumber(const std::string& text) {
    const bool digits = !text.empty() && text.size() <= 18 &&
                        text.find_first_not_of("0123456789") == std::string::npos;
    return digits ? "" : "\"" + text + "\" is no whole number";
}

}  // namespace

void addJobOptions(CLI::App& verb, client::JobSource& job) {
    verb.add_option("job,--job", job.file, "job file [the embedded demo]");
    const CLI::Validator number(wholeNumber, "N");
    verb.add_option("--replicas", job.replicas, "copies of the model")->check(number);
    verb.add_option("--shards", job.shards, "ranks of one replica")->check(number);
    verb.add_option("--steps", job.steps, "stop after so many")->check(number);
    verb.add_option("--seed", job.seed, "of the model and the data order")->check(number);
    verb.add_option("--name", job.name, "of the job and its run");
    verb.add_option("--data", job.data, "folder of texts, each file or folder in it a domain");
    verb.add_option("--fault", job.faults, "e.g. kill:replica=2@step=50; may be repeated")
        ->allow_extra_args(false);
    verb.add_option("--set", job.set, "key=value of the job file, e.g. policies.lr=linear")
        ->allow_extra_args(false);
    verb.add_option("--resume", job.resume,
                    "a checkpoint manifest, an earlier run's id, or latest");
}

}  // namespace bulkhead::cli
