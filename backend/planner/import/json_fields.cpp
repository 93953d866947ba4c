// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/json_fields.h"

#include "backend/model/json.h"
#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;
const Json kNull;

/// Short, and without walking into what may be deep.
std::string shown(const Json* value) {
    if (value == nullptr) return "nothing";
    if (value->is_array()) return concat("an array of ", value->size());
    if (value->is_object()) return "an object";
    return model::shortened(model::dumpJson(*value), 60);
}

}  // namespace

absl::StatusOr<Json> parseJsonFile(std::string_view text, std::string_view file) {
    auto json = model::parseJson(text);
    if (!json.ok())
        return absl::InvalidArgumentError(concat(file, ": ", std::string(json.status().message())));
    return json;
}

bool has(const Json& object, std::string_view key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return found != object.end() && !found->is_null();
}

std::string joined(std::string_view path, std::string_view key) {
    return path.empty() ? std::string(key) : concat(path, ".", key);
}

void JsonFields::refuse(std::string_view path, std::string_view expected, const Json* found) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        concat(file_, ": ", path, ": expected ", expected, ", found ", shown(found)));
}

const Json& JsonFields::member(const Json& object, std::string_view key, std::string_view path,
                               std::string_view expected) {
    if (!ok()) return kNull;
    if (!has(object, key)) {
        refuse(joined(path, key), expected, nullptr);
        return kNull;
    }
    return object.find(key).value();
}

uint64_t JsonFields::countOf(const Json& value, std::string_view path, uint64_t least,
                             uint64_t most) {
    if (!ok()) return 0;
    if (value.is_number_unsigned()) {
        const auto number = value.get<uint64_t>();
        if (number >= least && number <= most) return number;
    }
    refuse(path, concat("a whole number from ", least, " to ", most), &value);
    return 0;
}

uint64_t JsonFields::count(const Json& object, std::string_view key, std::string_view path,
                           uint64_t least, uint64_t most) {
    const Json& value =
        member(object, key, path, concat("a whole number from ", least, " to ", most));
    return ok() ? countOf(value, joined(path, key), least, most) : 0;
}

std::string JsonFields::text(const Json& object, std::string_view key, std::string_view path) {
    const Json& value = member(object, key, path, "a string");
    if (ok() && !value.is_string()) refuse(joined(path, key), "a string", &value);
    return ok() ? value.get<std::string>() : std::string();
}

const Json& JsonFields::array(const Json& object, std::string_view key, std::string_view path) {
    const Json& value = member(object, key, path, "an array");
    if (ok() && !value.is_array()) refuse(joined(path, key), "an array", &value);
    return ok() ? value : kNull;
}

const Json& JsonFields::object(const Json& object, std::string_view key, std::string_view path) {
    const Json& value = member(object, key, path, "an object");
    if (ok() && !value.is_object()) refuse(joined(path, key), "an object", &value);
    return ok() ? value : kNull;
}

}  // namespace bulkhead::planner
