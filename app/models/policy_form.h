// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <string>
#include <vector>

#include "backend/model/job_spec.h"

/// The policies of a job as an operator sets them, in the order of a job file. Pure; thread: any.
namespace bulkhead::ui {

struct PolicyField {
    std::string key;  ///< as in a job file's [policies]
    QString title;    ///< "Learning rate"
    QString hint;     ///< its effect, one sentence
    QString unit;     ///< unit behind the figure, empty for a bare number
    QString zero;     ///< meaning of 0, empty if it is just 0
    uint64_t scale =
        1;  ///< of the unit in the policy's own: 1,000,000 where MB are shown for bytes
    /// A choice when not empty: the operator's word for each, and the job file's.
    struct Choice {
        QString label;
        std::string value;
    };
    std::vector<Choice> choices;
    QString automatic = {};  ///< meaning of "auto", empty if it takes none
};

const std::vector<PolicyField>& policyFields();

/// Formats the value as in a job file; empty for an unknown key.
std::string policyValue(const model::Policies& policies, const std::string& key);
/// Formats the value for an operator: "Square root", "50 steps", "no cap".
QString policyWords(const model::Policies& policies, const PolicyField& field);

}  // namespace bulkhead::ui
