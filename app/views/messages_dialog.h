// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>

namespace bulkhead::ui {

class MessageLog;

/// The console's messages, newest first, with those that have gone from the screen.
class MessagesDialog final : public QDialog {
    Q_OBJECT
  public:
    /// `log` outlives the dialog.
    explicit MessagesDialog(MessageLog& log, QWidget* parent = nullptr);
};

}  // namespace bulkhead::ui
