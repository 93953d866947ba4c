// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QCoreApplication>
#include <QString>

namespace bulkhead::ui {

/// Translated texts for sources without a class of their own to translate in.
inline QString tr(const char* text) {
    return QCoreApplication::translate("models", text);
}

}  // namespace bulkhead::ui
