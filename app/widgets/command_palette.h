// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>

#include "app/widgets/action_registry.h"

class QLineEdit;
class QListWidget;

namespace bulkhead::ui {

/// Type a few letters, press Enter: any action of the registry that can be done now.
class CommandPalette final : public QDialog {
    Q_OBJECT
  public:
    CommandPalette(const ActionRegistry& registry, QWidget* parent);

  protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

  private:
    void fill(const QString& needle);
    void run();

    const ActionRegistry& registry_;
    QLineEdit* input_;
    QListWidget* list_;
};

/// All shortcuts by category, made from the registry.
class ShortcutSheet final : public QDialog {
    Q_OBJECT
  public:
    ShortcutSheet(const ActionRegistry& registry, QWidget* parent);
};

}  // namespace bulkhead::ui
