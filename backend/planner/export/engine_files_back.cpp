// SPDX-License-Identifier: Apache-2.0
// The engines' files read as the engines' documentation describes them, not as we write them.
#include <optional>
#include <set>

#include "backend/model/names.h"
#include "backend/model/parse_number.h"
#include "backend/planner/export/engine_files.h"
#include "backend/planner/import/json_fields.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// A JSON list of experts.
std::vector<uint32_t> expertsOf(const Json& list, const std::string& path, JsonFields& fields) {
    std::vector<uint32_t> out;
    if (!list.is_array()) fields.refuse(path, "a list of experts", &list);
    for (size_t i = 0; i < list.size() && fields.ok(); ++i)
        out.push_back(static_cast<uint32_t>(
            fields.countOf(list[i], concat(path, "[", i, "]"), 0, kMostExperts - 1)));
    return out;
}

absl::Status checkRows(const EnginePlacement& placement, std::string_view file) {
    if (placement.expertOfSlot.empty()) return refuse(file, "there is no layer in it");
    const size_t slots = placement.expertOfSlot[0].size();
    for (size_t row = 0; row < placement.expertOfSlot.size(); ++row)
        if (placement.expertOfSlot[row].size() != slots || slots == 0)
            return refuse(
                file, concat("layer ", placement.layerNumbers[row], ": ",
                             placement.expertOfSlot[row].size(), " slots, the first has ", slots));
    return absl::OkStatus();
}

/// Lines of the YAML that balancer files are: keys and numbers, lists in one line or one item a
/// line.
class BalancerReader {
  public:
    BalancerReader(std::string_view text, std::string_view file) : text_(text), file_(file) {}

    absl::StatusOr<EnginePlacement> read() {
        while (status_.ok() && nextLine()) takeLine();
        if (!status_.ok()) return status_;
        if (!slots_) return refuse(file_, "num_slots is missing");
        if (absl::Status ok = checkRows(out_, file_); !ok.ok()) return ok;
        if (out_.expertOfSlot[0].size() != *slots_)
            return refuse(file_, concat("num_slots is ", *slots_, ", layer ", out_.layerNumbers[0],
                                        " has ", out_.expertOfSlot[0].size(), " slots"));
        return std::move(out_);
    }

  private:
    bool nextLine() {
        if (at_ >= text_.size()) return false;
        const size_t end = std::min(text_.find('\n', at_), text_.size());
        line_ = text_.substr(at_, end - at_);
        at_ = end + 1;
        ++number_;
        return true;
    }
    void fail(std::string_view expected) {
        if (status_.ok())
            status_ = refuse(
                concat(file_, ":", number_),
                concat("expected ", expected, ", found \"", model::shortened(line_, 60), "\""));
    }
    static std::string_view trimmed(std::string_view text) {
        const size_t first = text.find_first_not_of(" \t\r");
        if (first == std::string_view::npos) return {};
        return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
    }

    void takeLine() {
        const std::string_view words = trimmed(line_);
        if (words.empty() || words[0] == '#') return;
        if (words[0] == '-') {
            if (!inAssignments_ || out_.expertOfSlot.empty()) return fail("a key");
            return addExpert(trimmed(words.substr(1)));
        }
        const size_t colon = words.find(':');
        if (colon == std::string_view::npos) return fail("a key and a colon");
        const std::string_view key = trimmed(words.substr(0, colon));
        const std::string_view value = trimmed(words.substr(colon + 1));
        const bool nested = line_[0] == ' ';
        if (nested && inAssignments_) return takeLayer(key, value);
        if (nested) return fail("a key at the start of the line");
        inAssignments_ = key == "initial_global_assignments";
        if (inAssignments_ ? !value.empty() : !takeSetting(key, value))
            fail("num_slots, layer_updates_per_iter or initial_global_assignments");
    }
    bool takeSetting(std::string_view key, std::string_view value) {
        const auto number = model::parseNumber<uint32_t>(value);
        if (key == "num_slots") slots_ = number;
        return number && (key == "num_slots" || key == "layer_updates_per_iter");
    }
    void takeLayer(std::string_view key, std::string_view value) {
        const auto layer = model::parseNumber<uint32_t>(key);
        if (!layer || *layer >= kMostLayers || !seen_.insert(*layer).second)
            return fail("a layer's number, once");
        out_.layerNumbers.push_back(*layer);
        out_.expertOfSlot.emplace_back();
        if (value.empty()) return;
        if (value.front() != '[' || value.back() != ']') return fail("a list in [ ]");
        value = value.substr(1, value.size() - 2);
        while (status_.ok() && !trimmed(value).empty()) {
            const size_t comma = std::min(value.find(','), value.size());
            addExpert(trimmed(value.substr(0, comma)));
            value.remove_prefix(std::min(comma + 1, value.size()));
        }
    }
    void addExpert(std::string_view text) {
        const auto expert = model::parseNumber<uint32_t>(text);
        if (!expert || *expert >= kMostExperts) return fail("an expert's number");
        out_.expertOfSlot.back().push_back(*expert);
    }

    std::string_view text_, file_, line_;
    size_t at_ = 0, number_ = 0;
    bool inAssignments_ = false;
    std::optional<uint32_t> slots_;
    std::set<uint32_t> seen_;
    absl::Status status_;
    EnginePlacement out_;
};

}  // namespace

absl::StatusOr<EnginePlacement> readSglangLocation(std::string_view text, std::string_view file) {
    const auto json = parseJsonFile(text, file);
    if (!json.ok()) return json.status();
    // The engine passes the object on as named arguments: one more key is an error there, too.
    if (!json->is_object() || json->size() != 1 || !json->contains("physical_to_logical_map"))
        return refuse(file, "expected an object with physical_to_logical_map and nothing else");
    JsonFields fields(file);
    const Json& rows = fields.array(*json, "physical_to_logical_map", "");
    EnginePlacement out;
    for (uint32_t row = 0; row < rows.size() && fields.ok(); ++row) {
        out.layerNumbers.push_back(row);
        out.expertOfSlot.push_back(
            expertsOf(rows[row], concat("physical_to_logical_map[", row, "]"), fields));
    }
    if (!fields.ok()) return fields.status();
    if (absl::Status ok = checkRows(out, file); !ok.ok()) return ok;
    return out;
}

absl::StatusOr<EnginePlacement> readTrtllmBalancer(std::string_view text, std::string_view file) {
    return BalancerReader(text, file).read();
}

absl::StatusOr<EnginePlacement> readAscendMap(std::string_view text, std::string_view file) {
    const auto json = parseJsonFile(text, file);
    if (!json.ok()) return json.status();
    JsonFields fields(file);
    const uint64_t count = fields.count(*json, "moe_layer_count", "", 1, kMostLayers);
    const Json& layers = fields.array(*json, "layer_list", "");
    if (fields.ok() && layers.size() != count)
        fields.refuse("layer_list", concat(count, " layers"), &layers);
    EnginePlacement out;
    for (size_t i = 0; i < layers.size() && fields.ok(); ++i) {
        const std::string path = concat("layer_list[", i, "]");
        out.layerNumbers.push_back(
            static_cast<uint32_t>(fields.count(layers[i], "layer_id", path, 0, kMostLayers - 1)));
        const uint64_t devices = fields.count(layers[i], "device_count", path, 1, kMostExperts);
        const Json& list = fields.array(layers[i], "device_list", path);
        if (fields.ok() && (list.size() != devices || (i > 0 && devices != out.devices)))
            fields.refuse(path + ".device_list", concat(devices, " devices in every layer"), &list);
        out.devices = static_cast<uint32_t>(devices);
        std::vector<uint32_t>& row = out.expertOfSlot.emplace_back();
        for (size_t d = 0; d < list.size() && fields.ok(); ++d) {
            const std::string place = concat(path, ".device_list[", d, "]");
            fields.count(list[d], "device_id", place, d, d);
            const auto experts = expertsOf(fields.array(list[d], "device_expert", place),
                                           place + ".device_expert", fields);
            if (fields.ok() && d > 0 && experts.size() * d != row.size())
                fields.refuse(place, "as many experts as on the other devices", &list[d]);
            row.insert(row.end(), experts.begin(), experts.end());
        }
    }
    if (!fields.ok()) return fields.status();
    if (absl::Status ok = checkRows(out, file); !ok.ok()) return ok;
    return out;
}

}  // namespace bulkhead::planner
