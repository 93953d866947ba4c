// SPDX-License-Identifier: Apache-2.0
#include "backend/model/json.h"

#include <array>
#include <unordered_set>

#include "backend/model/names.h"

namespace bulkhead::model {
namespace json_detail {
namespace {

std::string found(const Json& json) {
    constexpr size_t kShown = 40;
    switch (json.type()) {
        case Json::value_t::string:
            return concat("the string ", Json(shortened(json.get_ref<const std::string&>(), kShown))
                                             .dump(-1, ' ', false, Json::error_handler_t::replace));
        case Json::value_t::object:
            return "an object";
        case Json::value_t::array:
            return "an array";
        default:
            return json.dump();
    }
}

}  // namespace

void Reading::enter(std::string_view key) {
    path_.push_back(path_.empty() ? std::string(key) : concat(".", key));
}

void Reading::enter(size_t index) {
    path_.push_back(concat("[", index, "]"));
}

std::string Reading::where() const {
    return path_.empty() ? std::string("the value") : joined(path_, "");
}

void Reading::fail(std::string_view expected, const Json& json) {
    if (failed()) return;
    status_ = absl::InvalidArgumentError(
        concat(where(), ": expected ", expected, ", found ", found(json)));
}

void Reading::failUnknownKey(std::string_view key, const std::vector<std::string_view>& known) {
    if (failed()) return;
    status_ = absl::InvalidArgumentError(
        concat(where(), ": unknown key \"", shortened(key, 60), "\"", hintFor(key, known)));
}

void Reading::failUnknownName(std::string_view kind, std::string_view name,
                              const std::vector<std::string_view>& known) {
    if (failed()) return;
    status_ = absl::InvalidArgumentError(concat(where(), ": unknown ", kind, " \"",
                                                shortened(name, 60), "\"", hintFor(name, known)));
}

Json doubleToJson(double value) {
    if (std::isfinite(value)) return value;
    if (std::isnan(value)) return "nan";
    return value > 0 ? "inf" : "-inf";
}

bool doubleFromJson(const Json& json, double& value) {
    if (json.is_number()) {
        value = json.get<double>();
        return true;
    }
    if (!json.is_string()) return false;
    const std::string& name = json.get_ref<const std::string&>();
    if (name == "nan")
        value = std::numeric_limits<double>::quiet_NaN();
    else if (name == "inf")
        value = std::numeric_limits<double>::infinity();
    else if (name == "-inf")
        value = -std::numeric_limits<double>::infinity();
    else
        return false;
    return true;
}

}  // namespace json_detail

std::string dumpJson(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Json> parseJson(std::string_view text) {
    // Deep nesting would cost memory for nothing: no message of ours is deeper than a dozen.
    constexpr int kDeepest = 64;
    bool tooDeep = false;
    std::string twice;
    // These are the keys of the object that is open at each depth.
    std::array<std::unordered_set<std::string>, kDeepest + 2> keys;
    try {
        Json json = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
            tooDeep = tooDeep || depth > kDeepest;
            if (tooDeep) return false;
            const auto at = static_cast<size_t>(depth);
            if (event == Json::parse_event_t::object_start) keys[at + 1].clear();
            if (event == Json::parse_event_t::key)
                if (const auto& key = parsed.get_ref<const std::string&>();
                    !keys[at].insert(key).second)
                    twice = key;
            return true;
        });
        if (tooDeep) return absl::InvalidArgumentError("not JSON of ours: nested too deep");
        if (!twice.empty())
            return absl::InvalidArgumentError(
                concat("the key \"", shortened(twice, 60), "\" is there twice"));
        return json;
    } catch (const Json::parse_error& e) {
        return absl::InvalidArgumentError(concat("not JSON: error at byte ", e.byte));
    } catch (const Json::exception&) {
        return absl::InvalidArgumentError("not JSON: a number is out of range");
    }
}

}  // namespace bulkhead::model
