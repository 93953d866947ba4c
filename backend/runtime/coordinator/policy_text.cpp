// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/policy_text.h"

#include <charconv>
#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

/// Walks the described fields: the names are the job file's, so none can be forgotten here.
struct Setter {
    std::string_view name;
    std::string_view value;
    absl::Status result;
    bool found = false;
    std::string known;

    template <class T>
    void operator()(std::string_view field, T& member) {
        absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(field));
        if (field != name) return;
        found = true;
        if constexpr (std::is_enum_v<T>) {
            if (const auto parsed = enumFromName<T>(value)) {
                member = *parsed;
                return;
            }
            std::string names;
            for (const std::string_view n : EnumNames<T>::kNames)
                absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(n));
            result = absl::InvalidArgumentError(absl::StrCat("policy ", std::string(name),
                                                             " is one of ", names, ", not \"",
                                                             std::string(value), "\""));
        } else {
            T parsed{};
            const auto [end, ec] =
                std::from_chars(value.data(), value.data() + value.size(), parsed);
            if (ec == std::errc() && end == value.data() + value.size())
                member = parsed;
            else
                result = absl::InvalidArgumentError(absl::StrCat("policy ", std::string(name),
                                                                 " is a whole number, not \"",
                                                                 std::string(value), "\""));
        }
    }
};

}  // namespace

absl::Status setPolicy(model::Policies& policies, std::string_view name, std::string_view value) {
    model::Policies changed = policies;
    Setter setter{name, value, absl::OkStatus(), false, {}};
    model::Policies::fields(changed, setter);
    if (!setter.found)
        return absl::InvalidArgumentError(
            absl::StrCat("no policy is named \"", std::string(name), "\"; known: ", setter.known));
    if (setter.result.ok()) policies = changed;
    return setter.result;
}

}  // namespace bulkhead::runtime
