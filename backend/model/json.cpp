// SPDX-License-Identifier: Apache-2.0
#include "backend/model/json.h"

#include <string>
#include <unordered_set>
#include <vector>

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

namespace {

/// Looks a text over before it is read. (The parser's own callback looks at every value of an array
/// again after each object in it.)
class LookOver : public nlohmann::json_sax<Json> {
  public:
    bool tooDeep() const { return tooDeep_; }
    const std::string& twice() const { return twice_; }

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(size_t) override { return enter(); }
    bool start_array(size_t) override { return enter(); }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }
    bool key(string_t& key) override {
        if (!keys_.back().insert(key).second) twice_ = key;
        return true;
    }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;  // Json::parse() finds it again
    }

  private:
    /// Deep nesting would cost memory for nothing: no message of ours is deeper than a dozen.
    static constexpr size_t kDeepest = 64;
    bool enter() {
        keys_.emplace_back();
        tooDeep_ = keys_.size() > kDeepest + 1;
        return !tooDeep_;
    }
    bool leave() {
        keys_.pop_back();
        return true;
    }

    std::vector<std::unordered_set<std::string>> keys_;  ///< of what is open
    bool tooDeep_ = false;
    std::string twice_;
};

}  // namespace

absl::StatusOr<Json> parseJson(std::string_view text) {
    try {
        LookOver over;
        (void)Json::sax_parse(text, &over);
        if (over.tooDeep()) return absl::InvalidArgumentError("not JSON of ours: nested too deep");
        Json json = Json::parse(text);
        if (!over.twice().empty())
            return absl::InvalidArgumentError(
                concat("the key \"", shortened(over.twice(), 60), "\" is there twice"));
        return json;
    } catch (const Json::parse_error& e) {
        return absl::InvalidArgumentError(concat("not JSON: error at byte ", e.byte));
    } catch (const Json::exception&) {
        return absl::InvalidArgumentError("not JSON: a number is out of range");
    }
}

}  // namespace bulkhead::model
