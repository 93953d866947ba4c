// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <string>

#include "app/models/rows_model.h"

namespace bulkhead::ui {

inline std::string text(const Cell& cell) {
    return cell.text.toStdString();
}

}  // namespace bulkhead::ui
