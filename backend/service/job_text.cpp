// SPDX-License-Identifier: Apache-2.0
#include "backend/service/job_text.h"

#include <sstream>

#include "backend/model/toml_reader.h"

namespace bulkhead::service {
namespace {

/// Sets a dotted key of the table to a value written as TOML, or else to the text itself.
absl::Status apply(toml::table& root, const std::string& one) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0)
        return absl::InvalidArgumentError("\"" + one + "\" is no override; write it as key=value");
    const std::string key = one.substr(0, equals);
    const std::string value = one.substr(equals + 1);
    if (absl::Status s = model::checkKeys(key, "override"); !s.ok()) return s;
    toml::table* table = &root;
    size_t begin = 0;
    for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', begin)) {
        const std::string name = key.substr(begin, dot - begin);
        auto [it, inserted] = table->insert(name, toml::table());
        table = it->second.as_table();
        if (table == nullptr)
            return absl::InvalidArgumentError("override " + key + ": " + name +
                                              " is no table in the job file");
        begin = dot + 1;
    }
    const std::string leaf = key.substr(begin);
    if (leaf.empty())
        return absl::InvalidArgumentError("override " + key + " ends in a dot; name a key");
    toml::table parsed;
    if (model::parseToml("v = " + value, key, parsed).ok())
        parsed.get("v")->visit([&](const auto& node) { table->insert_or_assign(leaf, node); });
    else
        table->insert_or_assign(leaf, value);
    return absl::OkStatus();
}

/// "job.toml:12: what" or "job.toml: what" as "what".
std::string withoutPlace(const std::string& message, const std::string& name) {
    if (message.compare(0, name.size(), name) != 0) return message;
    const size_t line = message.find_first_not_of(":0123456789", name.size());
    return line == std::string::npos || message[line] != ' ' ? message : message.substr(line + 1);
}

}  // namespace

absl::StatusOr<model::JobSpec> parseJobText(const std::string& text, const std::string& fileName,
                                            const std::string& baseDir,
                                            const std::vector<std::string>& overrides,
                                            const model::MayReadModel& mayRead) {
    const std::string name = fileName.empty() ? "job" : fileName;
    if (overrides.empty()) return model::parseJob(text, name, baseDir, mayRead);
    toml::table table;
    // It says why, with file and line.
    if (!model::parseToml(text, name, table).ok())
        return model::parseJob(text, name, baseDir, mayRead);
    for (const std::string& one : overrides)
        if (absl::Status status = apply(table, one); !status.ok()) return status;
    std::ostringstream merged;
    merged << table;
    auto spec = model::parseJob(merged.str(), name, baseDir, mayRead);
    if (spec.ok()) return spec;
    // The merged text has lines of its own that nobody can look up.
    const std::string what = withoutPlace(std::string(spec.status().message()), name);
    const auto plain = model::parseJob(text, name, baseDir, mayRead);
    if (!plain.ok() && withoutPlace(std::string(plain.status().message()), name) == what)
        return plain;
    return absl::Status(spec.status().code(), name + " with overrides: " + what);
}

}  // namespace bulkhead::service
