// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/policy_form.h"

#include <type_traits>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/models/words.h"

namespace bulkhead::ui {
namespace {

/// Text of the one field that is called `key`.
struct Reader {
    std::string_view key;
    std::string text;

    template <class T>
    void operator()(std::string_view name, const T& value) {
        if (name != key) return;
        if constexpr (std::is_enum_v<T>)
            text = std::string(enumName(value));
        else if constexpr (IsOptional<T>::value)
            text = value ? std::to_string(*value) : "auto";
        else
            text = std::to_string(value);
    }
};

constexpr uint64_t kMegabyte = 1'000'000;

std::vector<PolicyField> makeFields() {
    const QString steps = tr("steps");
    return {
        {"lr",
         tr("Learning rate"),
         tr("What the rate becomes while fewer replicas contribute."),
         {},
         {},
         1,
         {{tr("Unchanged"), "none"},
          {tr("In proportion to contributors"), "linear"},
          {tr("By the square root of it"), "sqrt"}}},
        {"batch",
         tr("Batch"),
         tr("What becomes of the samples of a replica that is away."),
         {},
         {},
         1,
         {{tr("Smaller batch"), "shrink"}, {tr("Survivors take them over"), "constant"}}},
        {"recovery",
         tr("Recovery"),
         tr("What the others do when a replica is lost."),
         {},
         {},
         1,
         {{tr("They train on"), "ft"}, {tr("All go back to the last checkpoint"), "restart_all"}}},
        {"min_replicas",
         tr("Least replicas"),
         tr("With fewer contributors the job waits."),
         tr("replicas"),
         {},
         1,
         {}},
        {"parity_every_steps",
         tr("Parity check every"),
         tr("How often the hashes of all contributors are compared."),
         steps,
         tr("never"),
         1,
         {},
         tr("as often as is cheap")},
        {"checkpoint_every_steps",
         tr("Checkpoint every"),
         tr("How often one replica writes its state to disk."),
         steps,
         tr("never"),
         1,
         {}},
        {"checkpoints_kept",
         tr("Checkpoints kept"),
         tr("Older ones are removed."),
         tr("checkpoints"),
         tr("the last one"),
         1,
         {}},
        {"restart_limit",
         tr("Restarts before giving up"),
         tr("Of one replica within ten minutes."),
         tr("restarts"),
         tr("never give up"),
         1,
         {}},
        {"fetch_bytes_per_second",
         tr("Catch-up bandwidth"),
         tr("What one joiner may pull from all its sources together."),
         tr("MB/s"),
         tr("no cap"),
         kMegabyte,
         {}},
        {"delta_budget_bytes",
         tr("Gradients kept for catch-up"),
         tr("What each source keeps of reduced gradients while a joiner catches up, so that it can "
            "replay steps; those of 8 steps at least."),
         tr("MB"),
         tr("8 steps"),
         kMegabyte,
         {}}};
}

}  // namespace

const std::vector<PolicyField>& policyFields() {
    static const std::vector<PolicyField> fields = makeFields();
    return fields;
}

std::string policyValue(const model::Policies& policies, const std::string& key) {
    Reader reader{key, {}};
    model::Policies::fields(policies, reader);
    return reader.text;
}

QString policyWords(const model::Policies& policies, const PolicyField& field) {
    const std::string value = policyValue(policies, field.key);
    for (const PolicyField::Choice& choice : field.choices)
        if (choice.value == value) return choice.label;
    if (value == "auto") return field.automatic;
    const uint64_t number = toQt(value).toULongLong();
    if (number == 0 && !field.zero.isEmpty()) return field.zero;
    if (field.scale == 1) return formatCount(number) + u' ' + field.unit;
    return formatBytes(number) + (field.unit.endsWith(u's') ? QStringLiteral("/s") : QString());
}

}  // namespace bulkhead::ui
