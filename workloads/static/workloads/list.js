// Copies the list's address. Without it, the field can be selected by hand.
'use strict';

document.addEventListener('DOMContentLoaded', () => {
    for (const button of document.querySelectorAll('button[data-copies]')) {
        const field = document.getElementById(button.dataset.copies);
        const said = button.parentElement.querySelector('[role="status"]');
        button.hidden = false;
        button.addEventListener('click', async () => {
            field.select();
            try {
                await navigator.clipboard.writeText(field.value);
            } catch {
                document.execCommand('copy');
            }
            said.textContent = button.dataset.done;
        });
    }
});
